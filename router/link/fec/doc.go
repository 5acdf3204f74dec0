// Package fec corrects losses under QUIC: a packet connection between
// quic.Transport and the UDP socket that sends parity along, and repairs at the
// other end what the path lost, so that QUIC neither waits a round trip for it nor
// takes it for congestion.
//
// It owns: the frames, the blocks and their code, the measurement of loss and
// queues, how much parity is sent, and one stream for each node that all
// connections with it share. It never decides who may send frames (package link
// does, in the greeting), never opens, looks into or holds back a packet, and never
// repeats one. QUIC authenticates what it gets, also what was repaired.
//
// # Frames
//
// A frame is a datagram whose first byte is 4 to 9, which no QUIC packet has (RFC
// 9000 section 17) and RFC 9443 gives to nobody. Numbers are big-endian.
//
//	packet:   type (1: 4, 5 or 6)  index (1)  tag (4)  number (4)  sent (2)
//	          ECN and length (2: 2 and 14 bits)  packet
//	parity:   7 (1)  index (1)  tag (4)  number (4)  packets (1)  parity (1)
//	          sum (2 more than the longest packet of the block)
//	report:   8 (1)  flags (1: 1 = congested, 2 = losses fall on the longest delays)  tag (4)  received (4)  lost (4)
//	          bursts (4)  recovered (4)  queue (4, microseconds)  longest burst (1)
//	          dropped by the receiver's socket (4)  0 (1)
//	unknown:  9 (1)  0 (1)  tag (4)
//
// The tag is drawn by the receiver and told in its greeting: who did not read the
// greeting or the path cannot speak to a stream. number counts packets; that of
// parity is its block's first. sent is the sender's clock in units of 64
// microseconds. A packet of type 4 is in no block (a probe of the path's MTU), of
// type 5 in one that gets no parity, of type 6 in one that may. No parity frame is
// longer than the longest packet frame of its block: where those pass, it does.
// unknown answers a frame whose tag nobody has; its receiver sends packets as they
// are until the next greeting. Packets with a long header are never framed: a
// handshake gets through whatever the ends still know of each other.
//
// # Code
//
// A block is up to 64 packets in a row, closed after 2 ms (4 ms of a sender with
// little to send) or when it is full. Packets leave at once; parity follows when the
// block closes: sums of all packets over GF(2^8) with the coefficients of a Cauchy
// matrix, so that any n lost packets are found from any n parity packets. What a
// packet is shorter than the longest counts as zero.
//
// # How much parity
//
// The receiver reports every 50 ms while packets come. The sender takes the least
// parity with which one packet in a million stays lost (one in 100,000 of a sender
// with little to send, at most 1.1 times its bytes), by the measured loss and the
// mean length of bursts, within Options.Extra. A path that lost fewer than three
// packets in about 20 s gets none, but at first: a new path counts as one of 1 %
// loss for 5,000 packets, 10 s at most.
//
// Where packets of a sender with little to send are lost in a row, each block gets
// parity for the longest run of late, one packet more, and that part is sent when
// such a run has passed, 4 to 20 ms later: a run takes what follows at once as well.
//
// Two kinds of loss get none either. What the receiver's own socket had no room for,
// as the kernel counts it, is not the path's. And where of 30 losses under parity
// not one in eight was repaired, parity rests for 5 s, up to 5 min while that stays
// so: those are cuts, or a path that drops by rate.
//
// # Fairness
//
// A queue is measured as the growth of the least one-way delay within 20 ms over
// the least within a minute; a delay that jumps and then stands still for 100 ms,
// while few packets are missing, is that of a longer route. A queue that stood before and never drains, since many fill
// it, is told by a rank test: losses that fall on the packets that take longest are
// those of a full queue. While a queue is above Options.Queue, or losses fall so, and
// for 200 ms after the receiver's socket has overflowed, the sender sends no parity
// and takes no loss for the path's own, and a repaired packet is handed on with ECN
// "congestion experienced", on which QUIC slows down as for a loss; where it cannot
// carry that mark it is not handed on. After each such loss, repaired or not, every
// other packet of the node's is marked for 10 ms: all its connections slow down, and
// however many they are they give up the share that one would. A socket without control
// messages has no marks. Options.Rate limits what is sent to a node.
//
// # Bounds
//
// A node without a lease costs a look at a map, and now and then an answer of six
// bytes. A lease costs up to 512 buffers of 1.5 kB and the state of 16 blocks to
// receive; to send, 32 buffers and 8 blocks of parity that waits. Nothing is allocated
// for a packet.
//
// # Goroutines
//
// None but timers, which Layer.Close joins. quic-go reads in one goroutine and
// writes in one for each connection; writes to one node take turns.
//
// # Order
//
// Packets leave in the order of writing, and are handed on in the order of coming;
// a repaired one comes when its block can be solved.
package fec
