package rocketmq

import (
	"context"
	"errors"

	"github.com/mqrouter/mqrouter/broker"
	pb "github.com/mqrouter/mqrouter/internal/rocketmqpb"
)

// codeOf maps what a Store reports to the protocol. Clients retry every code of a
// send at once, but back off on TOO_MANY_REQUESTS: it stands for all that may pass.
var codeOf = map[broker.Kind]pb.Code{
	broker.KindTopicUnknown: pb.Code_TOPIC_NOT_FOUND,
	broker.KindGroupUnknown: pb.Code_CONSUMER_GROUP_NOT_FOUND,
	broker.KindUnroutable:   pb.Code_BAD_REQUEST,
	broker.KindResidency:    pb.Code_FORBIDDEN,
	broker.KindTooLarge:     pb.Code_MESSAGE_BODY_TOO_LARGE,
	broker.KindUnsupported:  pb.Code_UNSUPPORTED,
	broker.KindDiskFull:     pb.Code_TOO_MANY_REQUESTS,
	broker.KindBudget:       pb.Code_TOO_MANY_REQUESTS,
	broker.KindBusy:         pb.Code_TOO_MANY_REQUESTS,
	broker.KindStopped:      pb.Code_MASTER_PERSISTENCE_TIMEOUT,
	broker.KindClosed:       pb.Code_INTERNAL_SERVER_ERROR,
	broker.KindHandle:       pb.Code_INVALID_RECEIPT_HANDLE,
	broker.KindInvalid:      pb.Code_BAD_REQUEST,
	broker.KindCorrupt:      pb.Code_INTERNAL_SERVER_ERROR,
	broker.KindInternal:     pb.Code_INTERNAL_SERVER_ERROR,
	broker.KindTransaction:  pb.Code_INVALID_TRANSACTION_ID,
	broker.KindDecided:      pb.Code_PRECONDITION_FAILED,
	broker.KindUnavailable:  pb.Code_TOO_MANY_REQUESTS,
	broker.KindOffset:       pb.Code_ILLEGAL_OFFSET,
	broker.KindDeliveryTime: pb.Code_ILLEGAL_DELIVERY_TIME,
	broker.KindRecallHandle: pb.Code_BAD_REQUEST,
	broker.KindSettled:      pb.Code_NOT_FOUND,
	broker.KindNoOffset:     pb.Code_OFFSET_NOT_FOUND,
	broker.KindConflict:     pb.Code_ILLEGAL_MESSAGE_ID,
	broker.KindNotMaster:    pb.Code_TOO_MANY_REQUESTS,
	broker.KindInSync:       pb.Code_HA_NOT_AVAILABLE,
	broker.KindUnconfirmed:  pb.Code_SLAVE_PERSISTENCE_TIMEOUT,
	broker.KindLiteName:     pb.Code_ILLEGAL_LITE_TOPIC,
	broker.KindLiteTopics:   pb.Code_LITE_TOPIC_QUOTA_EXCEEDED,

	broker.KindLiteSubscriptions: pb.Code_LITE_SUBSCRIPTION_QUOTA_EXCEEDED,
}

// statusOK is shared by all answers; nobody changes it.
var statusOK = &pb.Status{Code: pb.Code_OK, Message: "OK"}

// refuse makes a status.
func refuse(code pb.Code, text string) *pb.Status { return &pb.Status{Code: code, Message: text} }

// statusOf turns an error of the Store into a status; a kind of a newer broker is
// an internal error.
func statusOf(err error) *pb.Status {
	if err == nil {
		return statusOK
	}
	code, known := codeOf[broker.KindOf(err)]
	switch {
	case known:
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		code = pb.Code_PROXY_TIMEOUT
	default:
		code = pb.Code_INTERNAL_SERVER_ERROR
	}
	return refuse(code, err.Error())
}

// settleStatus is statusOf for calls with a receipt handle. Push consumers repeat
// them for ever on every code but INVALID_RECEIPT_HANDLE, so whatever cannot come
// good by repeating is that: the delivery is void, and the message comes back if
// it is still there.
func settleStatus(err error) *pb.Status {
	switch broker.KindOf(err) {
	case broker.KindTopicUnknown, broker.KindGroupUnknown, broker.KindInvalid, broker.KindUnsupported, broker.KindRecallHandle:
		return refuse(pb.Code_INVALID_RECEIPT_HANDLE, err.Error())
	}
	return statusOf(err)
}

// merge folds the entries' codes into the answer's: the common one, else
// MULTIPLE_RESULTS.
func merge(n int, entry func(int) *pb.Status) *pb.Status {
	first := entry(0)
	for i := 1; i < n; i++ {
		if entry(i).GetCode() != first.GetCode() {
			return refuse(pb.Code_MULTIPLE_RESULTS, "the entries have different results")
		}
	}
	if first.GetCode() == pb.Code_OK {
		return statusOK
	}
	return first
}
