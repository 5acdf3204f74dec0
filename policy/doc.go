// Package policy holds the deciders that more than one room asks: how far a
// record may travel, which cities it may enter, how much one destination may hold
// back, and which clients may do what.
//
// Deciders are pure: state and event in, verdict out. They touch no clock, disk
// or network, have no goroutines, and are safe for concurrent use. What follows
// from a verdict (a refusal, a parked record) is the asking room's business.
//
// # Access
//
// An access file is YAML; unknown keys are faults.
//
//	clock:                    # how old a signature may be; the whole key may be left out
//	  skew: 5m                # 1s to 1h, or off; default 5m
//	  offsets: any            # or the offsets of the clients' clocks, [UTC, "+08:00"]; default any
//	anonymous:                # what clients without credentials may do; absent: nothing, they are refused
//	  consume: [news]
//	  groups: ["news-*"]
//	users:
//	  - access_key: payments
//	    secret: 16 bytes or more # or secrets: [new, old] while clients change from one to the other
//	    publish: [transfer, "order-*"] # topics to send to, to recall from and whose transactions to end
//	    consume: [transfer]            # topics to receive
//	    groups: [transfer-credit]      # consumer groups to receive for
//
// Receiving takes the topic and the consumer group. A name with * behind stands for
// all that begin so. The dead letters of a consumer group belong to whoever may act
// for it; * does not stand for those of others, "%DLQ%*" does.
//
// A signature covers the date of the request and nothing else, so it is as good as a
// password to whoever reads it on the way, for the time that the clock allows: twice
// the skew, once for each offset. With any, which the clients that write local time
// need when their offsets are not known, that is within the skew of each quarter
// hour for 28 hours. Name the offsets, and use TLS.
package policy
