package sitereport

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// maxHAProxyLine bounds one line of commands, which HAProxy reads into a buffer of 16 KB by default.
const maxHAProxyLine = 8 << 10

// Shares implements Actor: the virtual servers with the same backend.
func (h *HAProxy) Shares(virtualServer string) []string { return h.sharing[h.backends[virtualServer]] }

// May implements Actor: it asks for the level of the socket. Versions that do not know that find out when they act.
func (h *HAProxy) May(ctx context.Context) error {
	reply, err := h.ask(ctx, "show cli level")
	if err != nil {
		return fmt.Errorf("haproxy %s: %w", h.opts.Socket, err)
	}
	switch level := strings.TrimSpace(reply); level {
	case "user", "operator":
		return h.notAdmin("it has level " + level)
	}
	return nil
}

func (h *HAProxy) notAdmin(why string) error {
	return fmt.Errorf("haproxy %s: permission denied, %s: write \"level admin\" behind this \"stats socket\" in haproxy.cfg", h.opts.Socket, why)
}

// EndSessions implements Actor. The servers stay as they are.
func (h *HAProxy) EndSessions(ctx context.Context, virtualServer string) error {
	servers, err := h.servers(ctx, virtualServer)
	if err != nil {
		return err
	}
	var commands []string
	for _, s := range servers {
		commands = append(commands, "shutdown sessions server "+s.path)
	}
	return h.command(ctx, commands)
}

// Drain implements Actor.
func (h *HAProxy) Drain(ctx context.Context, virtualServer string, servers []string) ([]string, error) {
	return h.set(ctx, virtualServer, servers, StateUp, "drain")
}

// Ready implements Actor.
func (h *HAProxy) Ready(ctx context.Context, virtualServer string, servers []string) ([]string, error) {
	return h.set(ctx, virtualServer, servers, StateDrain, "ready")
}

// set gives another administrative state to those of the servers that HAProxy has and that now are in the state from.
func (h *HAProxy) set(ctx context.Context, virtualServer string, servers []string, from, to string) (changed []string, err error) {
	all, err := h.servers(ctx, virtualServer)
	if err != nil {
		return nil, err
	}
	wanted := make(map[string]bool, len(servers))
	for _, name := range servers {
		wanted[name] = true
	}
	var commands []string
	for _, s := range all {
		if s.State == from && wanted[s.Name] && !(to == "ready" && s.unforced) {
			changed = append(changed, s.Name)
			commands = append(commands, "set server "+s.path+" state "+to)
		}
	}
	failed := h.command(ctx, commands)
	if failed == nil {
		return changed, nil
	}
	if all, err = h.servers(ctx, virtualServer); err == nil {
		still := make(map[string]bool)
		for _, s := range all {
			still[s.Name] = still[s.Name] || s.State == from
		}
		changed = slices.DeleteFunc(changed, func(name string) bool { return still[name] })
	}
	return changed, failed
}

// A haproxyServer is a server, and how commands name it.
type haproxyServer struct {
	Server
	path     string
	unforced bool // it is in drain because it says so itself (NOLB), which no command ends
}

// servers asks for the present servers of a virtual server. Commands name only what HAProxy itself named.
func (h *HAProxy) servers(ctx context.Context, virtualServer string) ([]haproxyServer, error) {
	backend, ok := h.backends[virtualServer]
	if !ok {
		return nil, fmt.Errorf("haproxy %s: there is no virtual server %q in the agent's file", h.opts.Socket, virtualServer)
	}
	// Of thousands of backends the others would take longer than there is time. Where a frontend has the same name, HAProxy
	// may give that one's statistics, and versions before 1.7 give none: then all are asked for.
	var st *haproxyStat
	for _, commands := range []string{fmt.Sprintf("show servers state %s;show stat %[1]s 6 -1", backend), showServers} {
		reply, err := h.ask(ctx, commands)
		if err == nil {
			_, st, err = parseHAProxyReply(reply)
		}
		if err != nil {
			return nil, fmt.Errorf("haproxy %s: %w", h.opts.Socket, err)
		}
		if st.backends[backend] != nil {
			break
		}
	}
	if st.backends[backend] == nil {
		return nil, fmt.Errorf("haproxy %s: there is no backend %q", h.opts.Socket, backend)
	}
	var all []haproxyServer
	for _, row := range st.backends[backend].servers {
		s, _ := st.server(row)
		s.Name = printable(s.Name, MaxName) // as reported
		path := backend + "/" + row.cell("svname")
		all = append(all, haproxyServer{s, path, strings.HasPrefix(row.cell("status"), "NOLB") && !st.drained[path]})
	}
	return all, nil
}

// command runs commands that answer nothing when they are done. The first failure is returned, after all were tried.
func (h *HAProxy) command(ctx context.Context, commands []string) error {
	var failed error
	for len(commands) > 0 {
		n, size := 0, 0
		for n < len(commands) && (n == 0 || size+len(commands[n]) < maxHAProxyLine) {
			size += len(commands[n]) + 1
			n++
		}
		reply, err := h.ask(ctx, strings.Join(commands[:n], ";"))
		if err != nil {
			return errors.Join(failed, fmt.Errorf("haproxy %s: %w", h.opts.Socket, err))
		}
		commands = commands[n:]
		if reply = strings.TrimSpace(reply); reply == "" || failed != nil {
			continue
		}
		line, _, _ := strings.Cut(reply, "\n")
		if strings.HasPrefix(line, "Permission denied") {
			return h.notAdmin("it answers " + line)
		}
		failed = fmt.Errorf("haproxy %s: %s", h.opts.Socket, printable(line, 100))
	}
	return failed
}
