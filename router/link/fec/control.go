package fec

import (
	"math"
	"time"
)

// Constants of the controller. Measured ones are from the table of
// deploy/notes/0024.
const (
	// residual is the share of packets that may stay lost: with New Reno above, a
	// loss in a million packets does not bound a flow of 100 MB/s.
	residual = 1e-6
	// residualSparse is that of a sender with little to send: what counts there is
	// how many wait for a repeat, not the congestion window. All that comes within
	// the round trip of a repeat waits with it.
	residualSparse = 1e-5
	// sparseRate separates the two, in bytes a second.
	sparseRate = 3 << 20
	// fullRate is the rate from which the ceiling of a sender with much to send holds.
	// Between the two it falls evenly: short blocks need more parity for the same
	// residual, and a connection that is held to them by what stays lost never gets to
	// send long ones.
	fullRate = 24 << 20

	// A loss is remembered for about slow, so that a path that loses seldom stays
	// corrected; what rises is followed within about fast. Time in which a queue stands
	// is not counted.
	slow = 20 * time.Second
	fast = time.Second
	// leastLosses is how many losses within slow show a lossy path. One is an
	// accident: a probe for a larger packet, a full queue of a socket.
	leastLosses = 3
	// leastLoss is the share of losses below which correction does not pay.
	leastLoss = 5e-5
	// mostLoss bounds the share that is believed: above it a path is not lossy but
	// nearly cut.
	mostLoss = 0.3
	// assumedLoss is the share that a new path counts as, and priorPackets how many
	// packets end that: of one with the least loss that matters in slow start some are
	// lost among them.
	assumedLoss  = 0.01
	priorPackets = 5000
	// fade is how long what was seen above that is remembered once it is in doubt.
	fade = 2 * time.Second
	// mostBudget bounds what may be spent at once after a long clean time, in bytes:
	// the parity of about ten long blocks.
	mostBudget = 64 << 10
	// reportsLate is how many reports may tell of what was lost while a queue stood, from
	// the last that says so on.
	reportsLate = 4
	// mostBurst bounds the mean length of bursts that parity is added for.
	mostBurst = 6
)

// decayed is a pair of sums that forget.
type decayed struct{ packets, losses, bursts float64 }

func (d *decayed) add(keep float64, packets, losses, bursts float64) {
	d.packets = d.packets*keep + packets
	d.losses = d.losses*keep + losses
	d.bursts = d.bursts*keep + bursts
}

// controller decides how much parity blocks get, from the reports of their
// receiver. It is pure: reports and times in, a table out.
type controller struct {
	bulk, sparse float64 // most extra bytes for each byte

	at         time.Time // of the last report; zero = none
	last       report
	slow, fast decayed
	loss       float64       // share of packets lost, the estimate in force
	burst      float64       // mean length of a run of losses, at least 1
	congested  bool          // as the receiver says
	doubtful   int           // further reports whose losses may be of a time when it was
	learned    time.Duration // for how long the path was seen without a queue
	crowded    uint64        // reports of losses while it was
	longest    float64       // run of losses of late, in packets; it fades
	resting    bool          // parity repairs nothing
	budget     float64       // bytes of parity that were earned and not spent
	prior      decayed       // what slow holds of the assumption about a new path
	counted    float64       // packets reported since the start, until the prior is gone
	own        explained
	worth      worth
	need       [2][maxData + 1]uint8
}

func newController(bulk, sparse float64) *controller {
	// A new path counts as one that loses until enough packets say what it is: what is
	// lost before the first report would end QUIC's slow start.
	const packets, losses = 500, 500 * assumedLoss
	c := &controller{bulk: bulk, sparse: sparse, burst: 1, prior: decayed{packets: packets, losses: losses, bursts: losses}}
	c.slow = c.prior
	c.estimate()
	return c
}

// observe takes a report. It reports whether the table changed.
func (c *controller) observe(now time.Time, r *report) bool {
	packets, losses := r.received-c.last.received, r.lost-c.last.lost
	bursts := r.bursts - c.last.bursts
	if int32(packets) < 0 || int32(losses) < 0 || int32(bursts) < 0 {
		return false // overtaken by a newer one
	}
	elapsed := now.Sub(c.at)
	if c.at.IsZero() {
		elapsed = 0
	}
	repaired := float64(r.recovered - c.last.recovered)
	c.at, c.last = now, *r
	n, l := float64(packets)+float64(losses), c.own.take(now, r.own, float64(losses))
	keep := math.Exp(-elapsed.Seconds() / slow.Seconds())
	c.longest *= keep
	if l == float64(losses) { // no run at the socket
		c.longest = max(c.longest, float64(min(r.longest, mostRun)))
	}
	if c.congested = r.congested; c.congested && (l < float64(losses) || l > 0 && r.overflows || l > c.atRandom(n)) {
		c.crowded++
	}
	if r.congested || r.missed {
		c.doubtful = reportsLate
	}
	if c.doubtful > 0 {
		c.doubtful--
		c.worth.parity = 0
		c.doubt(elapsed, r.overflows)
	} else {
		c.worth.add(now, elapsed, l, repaired)
		c.learned += min(elapsed, 2*reportTime)
		c.slow.add(keep, n, l, min(float64(bursts), l))
		c.fast.add(math.Exp(-elapsed.Seconds()/fast.Seconds()), n, l, min(float64(bursts), l))
		c.forget(keep, n)
	}
	c.resting = c.worth.rests(now)
	return c.estimate()
}

// doubt has what is known of losses fade to what a new path counts as, if it may be of
// the queue that stands: of a stream that began behind one and takes it for the path, or
// of one whose losses prove to be those of a full queue.
func (c *controller) doubt(elapsed time.Duration, overflows bool) {
	if c.learned >= slow && !overflows {
		return
	}
	keep := math.Exp(-elapsed.Seconds() / fade.Seconds())
	for _, d := range []*decayed{&c.slow, &c.fast} {
		if over := d.losses - assumedLoss*d.packets; over > 0 {
			left := 1 - over*(1-keep)/d.losses
			d.losses *= left
			d.bursts *= left
		}
	}
}

// forget takes the assumption about a new path out of the counts when its packets
// have said enough.
func (c *controller) forget(keep, packets float64) {
	if c.prior.packets == 0 {
		return
	}
	c.prior.add(keep, 0, 0, 0)
	if c.counted += packets; c.counted >= priorPackets {
		c.slow.add(1, -c.prior.packets, -c.prior.losses, -min(c.prior.bursts, c.slow.bursts))
		c.prior = decayed{}
	}
}

// atRandom returns up to how many of so many packets may be lost by chance, three
// deviations above the mean: on a path that loses, not all that is lost while a queue
// stands is lost for want of room.
func (c *controller) atRandom(packets float64) float64 {
	mean := c.loss * packets
	return mean + 3*math.Sqrt(mean*c.burst)
}

// estimate says what the counts mean for blocks, and whether that has changed.
func (c *controller) estimate() bool {
	loss := 0.0
	if c.slow.losses >= leastLosses {
		loss = c.slow.losses / c.slow.packets
		// Two deviations below what is counted: chance is no rise.
		if sure := c.fast.losses - 2*math.Sqrt(c.fast.losses); sure > 0 {
			loss = max(loss, sure/c.fast.packets)
		}
	}
	burst := 1.0
	if c.slow.bursts > 0 {
		burst = min(max(c.slow.losses/c.slow.bursts, 1), mostBurst)
	}
	if loss < leastLoss {
		loss = 0
	}
	loss = min(loss, mostLoss)
	// A change of less than a tenth is no reason to count all tails again.
	if math.Abs(loss-c.loss) < c.loss/10 && math.Abs(burst-c.burst) < 0.2 {
		return false
	}
	c.loss, c.burst = loss, burst
	for k := 1; k <= maxData; k++ {
		c.need[0][k] = uint8(parityFor(k, loss, burst, residual))
		c.need[1][k] = uint8(parityFor(k, loss, burst, residualSparse))
	}
	return true
}

// measured returns the share of packets that were seen to be lost, without what a new
// path counts as.
func (c *controller) measured() float64 {
	if c.prior.packets == 0 {
		return c.loss
	}
	packets, losses := c.slow.packets-c.prior.packets, c.slow.losses-c.prior.losses
	if losses < leastLosses {
		return 0
	}
	return min(losses/packets, mostLoss)
}

// run returns how many packets in a row are lost now and then.
func (c *controller) run() int { return int(math.Round(c.longest)) }

// rows returns how many parity packets a block may get at most; 0 = it stays
// without, for there is nothing to correct or nothing that may be hidden.
func (c *controller) rows(sparse bool) int {
	if c.congested || c.resting {
		return 0
	}
	return max(int(c.need[row(sparse)][maxData]), c.forRun(sparse, maxData))
}

// forRun returns the parity that mends what a run of losses takes of a block of so
// many packets: a run takes parity of blocks before as well, and is longer than the
// packets that are counted. The mean length of runs, by which the table is made,
// says nothing of the long ones.
func (c *controller) forRun(sparse bool, packets int) int {
	if run := c.run(); sparse && run >= leastRun {
		return min(run+1, packets)
	}
	return 0
}

// parity returns how many a block of so many packets and bytes gets, the largest
// of which has most bytes. Each byte earns what may be added to it, and parity
// spends that: what long blocks leave protects short ones, for which the ceiling
// would be less than one packet.
func (c *controller) parity(sparse bool, rate float64, packets, bytes, most int) int {
	c.budget = min(c.budget+float64(bytes)*c.ceiling(sparse, rate), mostBudget)
	n := max(int(c.need[row(sparse)][packets]), c.forRun(sparse, packets))
	n = min(n, int(c.budget/float64(most)))
	c.budget -= float64(n * most)
	c.worth.parity += n
	return n
}

// ceiling returns the most that may be added to each byte at a rate, in bytes a second.
func (c *controller) ceiling(sparse bool, rate float64) float64 {
	switch {
	case sparse:
		return c.sparse
	case rate >= fullRate:
		return c.bulk
	}
	return max(c.bulk, c.sparse+(c.bulk-c.sparse)*(rate-sparseRate)/(fullRate-sparseRate))
}

func row(sparse bool) int {
	if sparse {
		return 1
	}
	return 0
}

// parityFor returns the least parity for a block of k packets with which the
// expected share of packets that stay lost is at most target, if each packet is
// lost with probability loss on its own, in runs of burst packets: a block of n
// packets then is one of n/burst runs, and a run takes burst packets of parity.
func parityFor(k int, loss, burst, target float64) int {
	if loss <= 0 {
		return 0
	}
	runs := max(float64(k)/burst, 1)
	for r := 1; ; r++ {
		spent := int(math.Ceil(float64(r) * burst))
		if spent >= maxParity {
			return maxParity
		}
		if tail(int(math.Ceil(runs))+r, r, loss) <= target {
			return spent
		}
	}
}

// tail returns the expected share of n packets that are lost in the cases in which
// more than r are, each with probability p.
func tail(n, r int, p float64) float64 {
	// The binomial distribution's terms from 0 on; those above r are what the
	// terms up to r leave of the mean, summed upward to keep their digits.
	term := math.Pow(1-p, float64(n))
	sum := 0.0
	for x := 0; x <= n; x++ {
		if x > r {
			sum += term * float64(x)
		}
		term *= float64(n-x) / float64(x+1) * p / (1 - p)
	}
	return sum / float64(n)
}
