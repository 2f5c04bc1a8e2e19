package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"
)

const (
	// prepareTime is how long a new process may read its configuration and databases. This one serves meanwhile.
	prepareTime = 5 * time.Minute
	// serveTime is how long it may then take to open the state. This one answers queries meanwhile, by what was last
	// published, and takes no reports and orders.
	serveTime = 30 * time.Second
)

// A successor is a new process that is to take over.
type successor struct {
	cmd   *exec.Cmd
	conn  net.Conn
	words *bufio.Reader
	http  []*os.File    // the sockets of server.http, in that order
	ended chan struct{} // closed when the process has
	done  chan struct{} // closed when it has taken over, or failed to
}

// prepare starts the program anew, from the same path and with the same arguments, and waits until it has read its
// configuration. It returns nil, and has logged why, when that has failed.
func (s *server) prepare(ctx context.Context) *successor {
	s.mu.Lock() // no reload is under way any more, and none begins: the new process is to have read the same file
	s.takingOver = true
	s.mu.Unlock()
	n, err := s.startSuccessor()
	if err != nil {
		s.takeoverFailed(err)
		return nil
	}
	s.log.Info("takeover begins", zap.Int("pid", n.cmd.Process.Pid), zap.String("program", n.cmd.Path))
	if err := n.hear(ctx, wordPrepared, prepareTime); err != nil {
		n.kill()
		n.close()
		s.takeoverFailed(err)
		return nil
	}
	return n
}

// takeoverFailed says that this process goes on.
func (s *server) takeoverFailed(err error) {
	s.mu.Lock()
	s.takingOver = false
	s.mu.Unlock()
	s.log.Error("takeover failed, this process goes on", zap.Error(err))
	text := err.Error()
	s.untaken.Store(&text)
}

// startSuccessor starts the new process with all sockets.
func (s *server) startSuccessor() (_ *successor, err error) {
	if os.Getpid() == 1 {
		return nil, errors.New("this process is number 1 of its container, which ends with it: start the new version in another container")
	}
	program, err := exec.LookPath(os.Args[0])
	if err != nil {
		return nil, err
	}
	n := &successor{ended: make(chan struct{}), done: make(chan struct{})}
	var files []*os.File
	defer func() {
		if err != nil {
			n.close()
		}
		for _, f := range files {
			f.Close()
		}
	}()
	for _, socket := range s.dns.Sockets() {
		f, err := copySocket(socket)
		if err != nil {
			return nil, err
		}
		files = append(files, f)
	}
	for _, h := range s.http {
		f, err := copySocket(h.socket)
		if err != nil {
			return nil, err
		}
		n.http = append(n.http, f)
	}
	conn, theirs, err := socketPair()
	if err != nil {
		return nil, err
	}
	defer theirs.Close()
	n.conn, n.words = conn, bufio.NewReader(conn)
	n.cmd = exec.Command(program, os.Args[1:]...)
	n.cmd.Stdin, n.cmd.Stdout, n.cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	n.cmd.ExtraFiles = append(append([]*os.File{theirs}, files...), n.http...)
	n.cmd.Env = append(os.Environ(), takeoverVariable+"="+strconv.Itoa(len(files)+len(n.http)))
	n.cmd.Env = append(n.cmd.Env, s.manager.environment()...)
	if err := n.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		_ = n.cmd.Wait() // hear tells of its status
		close(n.ended)
	}()
	return n, nil
}

// hear waits for a word of the new process. The error says why it did not come.
func (n *successor) hear(ctx context.Context, word string, within time.Duration) error {
	_ = n.conn.SetReadDeadline(time.Now().Add(within))
	stop := context.AfterFunc(ctx, func() { _ = n.conn.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	line, err := n.words.ReadString('\n')
	switch {
	case err == nil && line == word+"\n":
		return nil
	case err == nil:
		return fmt.Errorf("the new process says %q and not that it is %s: is it another program?", line, word)
	case ctx.Err() != nil:
		return errors.New("gslbd stops")
	case errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Errorf("the new process is not %s within %s", word, within)
	}
	// It has closed the connection, and so has ended, or it is another program, which kill ends.
	n.kill()
	return fmt.Errorf("the new process has ended before it was %s (%s): what it has printed says why", word, n.cmd.ProcessState)
}

// take gives the new process what is left to tell, and waits until it serves.
func (n *successor) take(ctx context.Context, h handover) error {
	line, err := json.Marshal(h)
	if err != nil {
		return err
	}
	_ = n.conn.SetWriteDeadline(time.Now().Add(serveTime))
	if _, err := n.conn.Write(append(line, '\n')); err != nil {
		return fmt.Errorf("the new process hears nothing any more: %w", err)
	}
	return n.hear(ctx, wordServing, serveTime)
}

// kill ends the new process, unless it has ended, and waits for its end: it must not come to serve later.
func (n *successor) kill() {
	_ = n.cmd.Process.Kill()
	<-n.ended
}

// close gives up what this process holds of the new one, which sees that the takeover is over.
func (n *successor) close() {
	defer close(n.done)
	if n.conn != nil {
		n.conn.Close()
	}
	for _, f := range n.http {
		f.Close()
	}
}

// succeed starts a new process for each signal, one after the other, and hands it to keep once it is prepared, until stopping
// is done.
func (s *server) succeed(stopping context.Context, usr2 <-chan struct{}, prepared chan<- *successor) {
	for {
		select {
		case <-stopping.Done():
			return
		case <-usr2:
		}
		n := s.prepare(stopping)
		if n == nil {
			continue
		}
		select {
		case prepared <- n:
			<-n.done
		case <-stopping.Done():
			n.kill()
			n.close()
		}
	}
}

// keep runs what only one process may do, in periods: orders, the state, and the listeners by which they change. A period ends
// when a new process is prepared to do it. If that one comes to serve, takenOver is called and keep returns; if not, it all
// goes on. Queries are answered meanwhile.
func (s *server) keep(running, stopping context.Context, prepared <-chan *successor, takenOver func()) error {
	for {
		period, pause := context.WithCancel(running)
		ended := make(chan error, 1)
		go func() { ended <- s.period(period) }()
		var n *successor
		select {
		case err := <-ended:
			pause()
			return err
		case n = <-prepared:
		}
		s.pausing.Store(true)
		pause()
		err := <-ended
		if err == nil {
			h := handover{PID: os.Getpid(), CookieSecret: s.dns.CookieSecret(), Checks: s.monitor.Standings()}
			if h.Counters, err = s.face.Counters(); err != nil {
				s.log.Warn("the counters of telemetry will begin at 0", zap.Error(err))
			}
			err = n.take(stopping, h)
		}
		if err == nil {
			s.log.Info("taken over", zap.Int("by", n.cmd.Process.Pid))
			takenOver()
			s.manager.tell("MAINPID=" + strconv.Itoa(n.cmd.Process.Pid)) // before the new one speaks, which waits for the end of this
			n.close()
			return nil
		}
		n.kill()
		broken := s.goOn(n)
		s.takeoverFailed(err)
		s.pausing.Store(false)
		n.close()
		if broken != nil {
			return broken
		}
	}
}

// goOn opens again what was given up for the new process.
func (s *server) goOn(n *successor) error {
	s.control.Reopen()
	for i, h := range s.http {
		if err := h.reopen(n.http[i]); err != nil {
			return err
		}
	}
	return nil
}

// copySocket returns another descriptor of a socket. That of package net would have the socket block as soon as it is passed
// to a process, here as well.
func copySocket(c syscall.Conn) (*os.File, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	var fd int
	var dupErr error
	if err := raw.Control(func(of uintptr) { fd, dupErr = unix.FcntlInt(of, unix.F_DUPFD_CLOEXEC, 0) }); err != nil {
		return nil, err
	}
	if dupErr != nil {
		return nil, os.NewSyscallError("fcntl", dupErr)
	}
	return os.NewFile(uintptr(fd), "socket"), nil
}

// socketPair returns the two ends of a connection: ours, and one to pass to a process.
func socketPair() (ours net.Conn, theirs *os.File, err error) {
	syscall.ForkLock.RLock() // not every system makes them with close-on-exec
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err == nil {
		unix.CloseOnExec(fds[0])
		unix.CloseOnExec(fds[1])
	}
	syscall.ForkLock.RUnlock()
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	f := os.NewFile(uintptr(fds[0]), "takeover")
	defer f.Close()
	theirs = os.NewFile(uintptr(fds[1]), "takeover")
	if ours, err = net.FileConn(f); err != nil {
		theirs.Close()
	}
	return ours, theirs, err
}
