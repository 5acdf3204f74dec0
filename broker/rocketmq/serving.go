package rocketmq

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/experimental"
	"google.golang.org/grpc/keepalive"
)

// bounded returns what a front end demands of every connection, whether it answers the
// calls or passes them on.
func bounded(m *memory, streams int) []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.MaxRecvMsgSize(maxRequestBytes),
		uncompressed(),
		grpc.InTapHandle(m.begin),
		experimental.BufferPool(m),
		grpc.MaxConcurrentStreams(uint32(streams)),
		// C++ pings every 60 s and Java every 300 s, without calls too.
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 10 * time.Second, PermitWithoutStream: true}),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 30 * time.Second, Timeout: 20 * time.Second}),
		grpc.MaxHeaderListSize(64 << 10),
		grpc.ConnectionTimeout(handshakeTime),
		grpc.WaitForHandlers(true),
	}
}

// serving is a gRPC server's life.
type serving struct {
	grpc   *grpc.Server
	stop   func()        // ends the loops, and what waits; called once
	grace  time.Duration // that calls have to end then
	logger *slog.Logger
}

// run serves the listener beside the loops until ctx ends or the listener fails. Then it
// stops all, closes the listener and joins the loops.
func (s *serving) run(ctx context.Context, l net.Listener, loops ...func()) error {
	var wg sync.WaitGroup
	served := make(chan error, 1)
	wg.Go(func() { served <- s.grpc.Serve(l) })
	for _, loop := range loops {
		wg.Go(loop)
	}
	var err error
	select {
	case <-ctx.Done():
	case err = <-served:
	}
	s.stop()
	s.stopGRPC()
	closeErr := l.Close() // gRPC has closed it unless Serve never began
	wg.Wait()
	return errors.Join(err, closeErr)
}

// stopGRPC ends the server in good order within the grace period.
func (s *serving) stopGRPC() {
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.grpc.GracefulStop()
	}()
	timer := time.NewTimer(s.grace)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
		s.logger.Warn("calls cut off at shutdown")
		s.grpc.Stop()
		<-done
	}
}
