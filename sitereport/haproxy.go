package sitereport

import (
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// maxHAProxyReply bounds what is read from a runtime socket: about 25,000 servers at 600 bytes of statistics and 150 of
// their administrative state.
const maxHAProxyReply = 20 << 20

// HAProxyOptions configure a HAProxy reader.
type HAProxyOptions struct {
	// Socket is the runtime socket ("stats socket" in haproxy.cfg): a path, or host:port. Not the URL of the statistics
	// page. Level user suffices; level operator adds the servers' addresses; the methods of an Actor need level admin.
	Socket string

	Timeout        time.Duration // for one reading, from connect to the last byte; default 2s
	VirtualServers []HAProxyVirtualServer
}

// A HAProxyVirtualServer pairs the frontend that clients connect to with the backend that holds the servers.
type HAProxyVirtualServer struct {
	Name     string
	Frontend string // gives sessions and traffic
	Backend  string // gives the servers; the same name as Frontend for a "listen" section

	// Address, Port and Protocol are reported as they are; a member of gslbd is found by them or by Name.
	Address  netip.Addr
	Port     uint16
	Protocol string
}

// A HAProxy reads an HAProxy process, from version 1.4 on, by its runtime socket.
//
// What clients do is counted at frontends: open sessions (scur), new sessions a second (rate), and traffic, as what the
// byte counters grew by since the last reading. The sum for the site counts every configured frontend once, also when
// it leads to several backends. Servers are those of the backends:
//
//	UP, UP i/n, no check       up (without checks HAProxy uses the server, and so do we)
//	DOWN, DOWN i/n             down; i/n is on its way up but does not get sessions yet
//	DRAIN, NOLB                drain
//	MAINT                      maint
//	anything else              unknown, with a warning
//
// A frontend that an operator stopped takes no connections, whatever its servers do: those that are up are reported in
// maintenance.
//
// A HAProxy is for one reader at a time.
type HAProxy struct {
	// Fixed at construction.
	opts     HAProxyOptions
	network  string
	backends map[string]string   // by virtual server
	sharing  map[string][]string // the virtual servers of a backend

	// Owned by Read.
	known   map[string][]Server // the servers last seen, by virtual server
	meter   meter
	process haproxyProcess
	at      time.Time // when process was read
}

// haproxyProcess tells one HAProxy process from the next, whose counters start from 0.
type haproxyProcess struct {
	pid    string
	uptime uint64 // seconds; 0: unknown
}

// NewHAProxy returns a reader. It fails when the socket is not a path and not host:port.
func NewHAProxy(opts HAProxyOptions) (*HAProxy, error) {
	if opts.Timeout <= 0 {
		opts.Timeout = 2 * time.Second
	}
	h := &HAProxy{
		opts: opts, network: "unix", backends: make(map[string]string), sharing: make(map[string][]string),
		known: make(map[string][]Server),
	}
	for _, v := range opts.VirtualServers {
		h.backends[v.Name] = v.Backend
		h.sharing[v.Backend] = append(h.sharing[v.Backend], v.Name)
	}
	switch {
	case strings.Contains(opts.Socket, "://"):
		return nil, fmt.Errorf("haproxy: %q is a URL: give the path or host:port of the runtime socket, which is what "+
			"\"stats socket\" in haproxy.cfg says", opts.Socket)
	case strings.ContainsAny(opts.Socket, "/@"):
	default:
		if _, _, err := net.SplitHostPort(opts.Socket); err != nil {
			return nil, fmt.Errorf("haproxy: %q is neither the path of a runtime socket nor host:port", opts.Socket)
		}
		h.network = "tcp"
	}
	return h, nil
}

// String names the reader for operators.
func (h *HAProxy) String() string { return "haproxy " + h.opts.Socket }

// Read reads the process once.
func (h *HAProxy) Read(ctx context.Context) (Reading, error) {
	// All commands on one connection are answered by one process, so that its age belongs to its counters.
	reply, err := h.ask(ctx, "show info;"+showServers)
	if err == nil {
		var r Reading
		if r, err = h.interpret(time.Now(), reply); err == nil {
			return r, nil
		}
	}
	h.meter.reset()
	var r Reading
	for _, v := range h.opts.VirtualServers {
		r.VirtualServers = append(r.VirtualServers, h.unknown(v, h.known[v.Name], err.Error()))
	}
	return r, fmt.Errorf("haproxy %s: %w", h.opts.Socket, err)
}

// showServers asks for all servers: first for their administrative states, since the statistics do not tell those in drain
// that are down from others that are down. Versions before 1.6 do not know that, say so, and go on.
const showServers = "show servers state;show stat"

// ask sends a line of commands and returns the reply.
func (h *HAProxy) ask(ctx context.Context, commands string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, h.opts.Timeout)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, h.network, h.opts.Socket)
	if err != nil {
		switch {
		case errors.Is(err, fs.ErrPermission):
			return "", fmt.Errorf("%w: let the agent's user or group in by \"stats socket PATH mode 660 group GROUP\" in haproxy.cfg", err)
		case errors.Is(err, fs.ErrNotExist):
			return "", fmt.Errorf("%w: is HAProxy running, with \"stats socket %s\" in haproxy.cfg?", err, h.opts.Socket)
		case errors.Is(err, syscall.ECONNREFUSED):
			return "", fmt.Errorf("%w: is HAProxy running?", err)
		}
		return "", err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })()

	if _, err := io.WriteString(conn, commands+"\n"); err != nil {
		return "", fmt.Errorf("the runtime socket takes no command: %w", err)
	}
	reply, err := io.ReadAll(io.LimitReader(conn, maxHAProxyReply+1))
	switch {
	case len(reply) > maxHAProxyReply:
		return "", fmt.Errorf("the answer is longer than %d bytes", maxHAProxyReply)
	case ctx.Err() != nil:
		return "", fmt.Errorf("no whole answer in %s, only %d bytes", h.opts.Timeout, len(reply))
	case err != nil:
		return "", err
	}
	return string(reply), nil
}

// interpret makes a reading of a reply.
func (h *HAProxy) interpret(now time.Time, reply string) (Reading, error) {
	before, st, err := parseHAProxyReply(reply)
	if err != nil {
		return Reading{}, err
	}
	if p := parseHAProxyInfo(before); h.restarted(now, p) {
		h.meter.reset()
	}

	var r Reading
	seen := make(map[string]bool) // frontends already counted
	sum := Load{Sessions: new(uint64), NewSessions: new(float64)}
	counters, counted := make(map[string]traffic), true
	for _, v := range h.opts.VirtualServers {
		front, back := st.frontends[v.Frontend], st.backends[v.Backend]
		var bad []string
		if front == nil {
			bad = append(bad, fmt.Sprintf("HAProxy has no frontend %q; it has %s", v.Frontend, list(slices.Collect(maps.Keys(st.frontends)))))
		}
		if back == nil {
			bad = append(bad, fmt.Sprintf("HAProxy has no backend %q; it has %s", v.Backend, list(slices.Collect(maps.Keys(st.backends)))))
		}
		for _, b := range bad {
			r.Warnings = append(r.Warnings, fmt.Sprintf("virtual server %q: %s", v.Name, b))
		}

		out := VirtualServer{Name: v.Name, Address: v.Address, Port: v.Port, Protocol: v.Protocol, Sessions: front.number("scur")}
		servers := h.known[v.Name]
		if back != nil {
			servers = make([]Server, 0, len(back.servers))
			for _, row := range back.servers {
				s, known := st.server(row)
				if !known {
					r.Warnings = append(r.Warnings, fmt.Sprintf("virtual server %q: server %q has the status %q, which is not known: it is reported as unknown",
						v.Name, s.Name, row.cell("status")))
				}
				servers = append(servers, s)
			}
			if len(servers) == 0 {
				r.Warnings = append(r.Warnings, fmt.Sprintf("virtual server %q: backend %q has no servers, so nothing is known of its health", v.Name, v.Backend))
			}
			h.known[v.Name] = servers
		}
		switch {
		case len(bad) > 0:
			out.Servers = h.unknown(v, servers, bad[0]).Servers
		case front.stopped():
			out.Servers = maintained(servers, fmt.Sprintf("frontend %s is %s", v.Frontend, front.cell("status")))
		default:
			out.Servers = servers
		}
		r.VirtualServers = append(r.VirtualServers, out)

		if seen[v.Frontend] {
			continue
		}
		seen[v.Frontend] = true
		sum.Sessions = add(sum.Sessions, front.number("scur"))
		var rate *float64
		if n := front.number("rate"); n != nil {
			f := float64(*n)
			rate = &f
		}
		sum.NewSessions = add(sum.NewSessions, rate)
		in, out2 := front.number("bin"), front.number("bout")
		if in == nil || out2 == nil {
			counted = false
			continue
		}
		counters[v.Frontend] = traffic{in: *in, out: *out2}
	}
	if len(seen) > 0 {
		r.Load = sum
	}
	if !counted {
		counters = nil
	}
	r.Load.BitsPerSecIn, r.Load.BitsPerSecOut = h.meter.rate(now, counters)
	return r, nil
}

// restarted says whether p is another process than that of the last reading, and remembers p. In a container every
// process may have the same number, so the uptime must have grown by about the time that passed.
func (h *HAProxy) restarted(now time.Time, p haproxyProcess) bool {
	last, passed := h.process, now.Sub(h.at)
	h.process, h.at = p, now
	const slack = 2 // seconds: uptimes are whole seconds
	return p.pid != last.pid || p.uptime+slack < last.uptime+uint64(passed.Seconds())
}

// unknown reports a virtual server of which only the names of its servers are known.
func (h *HAProxy) unknown(v HAProxyVirtualServer, servers []Server, reason string) VirtualServer {
	return VirtualServer{Name: v.Name, Address: v.Address, Port: v.Port, Protocol: v.Protocol, Servers: unknownServers(servers, reason)}
}

// maintained returns servers with those that are up put in maintenance.
func maintained(servers []Server, reason string) []Server {
	servers = slices.Clone(servers)
	for i := range servers {
		if s := &servers[i]; s.State == StateUp {
			s.State, s.Reason = StateMaint, reason
		}
	}
	return servers
}

// parseHAProxyReply reads the answer of showServers; before is what stands before the statistics.
func parseHAProxyReply(reply string) (before string, st *haproxyStat, err error) {
	before, stat, err := splitHAProxyReply(reply)
	if err != nil {
		return "", nil, err
	}
	if st, err = parseHAProxyStat(stat); err != nil {
		return "", nil, err
	}
	st.drained = parseHAProxyDrained(before)
	return before, st, nil
}

// parseHAProxyDrained returns the servers, as backend/server, that "show servers state" lists in drain. Some of them may be down, or in
// maintenance that is not their own: it ends when the server which they track or their address comes back, and they
// are in drain then.
func parseHAProxyDrained(states string) map[string]bool {
	drained := make(map[string]bool)
	var backend, server, admin int // columns; 0: not yet known
	for line := range strings.Lines(states) {
		cells := strings.Fields(line)
		if rest, ok := strings.CutPrefix(line, "# "); ok {
			cells = strings.Fields(rest)
			backend, server, admin = slices.Index(cells, "be_name"), slices.Index(cells, "srv_name"), slices.Index(cells, "srv_admin_state")
			continue
		}
		if min(backend, server, admin) <= 0 || len(cells) <= max(backend, server, admin) {
			continue
		}
		// HAProxy's management guide: 8 is forced drain, 1 forced maintenance.
		if state, err := strconv.ParseUint(cells[admin], 0, 32); err == nil && state&8 != 0 && state&1 == 0 {
			drained[cells[backend]+"/"+cells[server]] = true
		}
	}
	return drained
}

// splitHAProxyReply parts the answer of "show stat" from those before it.
func splitHAProxyReply(reply string) (before, stat string, err error) {
	first, _, _ := strings.Cut(strings.TrimSpace(reply), "\n")
	first = printable(first, 100)
	switch lower := strings.ToLower(first); {
	case first == "":
		return "", "", errors.New("the answer is empty")
	case strings.HasPrefix(lower, "http/"), strings.HasPrefix(lower, "<"):
		return "", "", fmt.Errorf("a web server answers (%q): give the runtime socket, which is what \"stats socket\" in haproxy.cfg says, "+
			"not the statistics page", first)
	}
	const header = "# pxname,"
	at := strings.Index(reply, header)
	if at < 0 {
		return "", "", fmt.Errorf("this is not HAProxy's statistics: %q", first)
	}
	before, stat = reply[:at], reply[at:]
	// HAProxy ends the answer to every command with an empty line.
	if !strings.HasSuffix(stat, "\n\n") {
		return "", "", fmt.Errorf("the statistics are cut off after %d bytes", len(reply))
	}
	return before, stat, nil
}

// parseHAProxyInfo reads what is needed of "show info". What is missing stays zero.
func parseHAProxyInfo(info string) (p haproxyProcess) {
	for line := range strings.Lines(info) {
		name, value, _ := strings.Cut(line, ":")
		switch value = strings.TrimSpace(value); name {
		case "Pid":
			p.pid = value
		case "Uptime_sec":
			p.uptime, _ = strconv.ParseUint(value, 10, 64)
		}
	}
	return p
}

// haproxyStat is a parsed "show stat".
type haproxyStat struct {
	frontends map[string]*haproxyRow
	backends  map[string]*haproxyBackend
	drained   map[string]bool // see parseHAProxyDrained
}

// server returns what is known of a server, and whether its status is a known one.
func (st *haproxyStat) server(row *haproxyRow) (Server, bool) {
	s, known := row.server()
	if !st.drained[row.cell("pxname")+"/"+row.cell("svname")] {
		return s, known
	}
	// What keeps it out may end any time, and then it still is in drain.
	switch s.State {
	case StateDown:
		s.State, s.Reason = StateDrain, "in drain, and down: "+s.Reason
	case StateMaint:
		s.State, s.Reason = StateDrain, "in drain, and "+s.Reason
	}
	return s, known
}

type haproxyBackend struct{ servers []*haproxyRow }

// A haproxyRow is one line, with its columns found by name: versions have between 30 and 130 of them.
type haproxyRow struct {
	columns map[string]int
	cells   []string
}

// parseHAProxyStat reads the CSV of "show stat", beginning with its header.
func parseHAProxyStat(stat string) (*haproxyStat, error) {
	r := csv.NewReader(strings.NewReader(strings.TrimPrefix(stat, "# ")))
	header, err := r.Read()
	if err != nil {
		return nil, fmt.Errorf("the statistics have no header: %w", err)
	}
	columns := make(map[string]int, len(header))
	for i, name := range header {
		if _, twice := columns[name]; !twice {
			columns[name] = i
		}
	}
	for _, name := range []string{"pxname", "svname", "scur", "status"} {
		if _, ok := columns[name]; !ok {
			return nil, fmt.Errorf("the statistics have no column %q", name)
		}
	}
	st := &haproxyStat{frontends: make(map[string]*haproxyRow), backends: make(map[string]*haproxyBackend)}
	servers := make(map[string][]*haproxyRow)
	for {
		cells, err := r.Read()
		if err == io.EOF {
			break
		}
		if err != nil {
			var at *csv.ParseError
			if errors.As(err, &at) && errors.Is(err, csv.ErrFieldCount) {
				return nil, fmt.Errorf("the statistics are cut off or broken: line %d has %d fields, its header has %d", at.Line, len(cells), len(header))
			}
			return nil, fmt.Errorf("the statistics are cut off or broken: %w", err)
		}
		row := &haproxyRow{columns: columns, cells: cells}
		proxy := row.cell("pxname")
		switch row.kind() {
		case "0":
			if st.frontends[proxy] == nil {
				st.frontends[proxy] = row
			}
		case "1":
			st.backends[proxy] = new(haproxyBackend)
		case "2":
			servers[proxy] = append(servers[proxy], row)
		}
	}
	for name, b := range st.backends {
		b.servers = servers[name]
	}
	return st, nil
}

// kind returns the row's type as HAProxy numbers it: 0 frontend, 1 backend, 2 server, 3 listener. Versions without the
// column tell by the name, and a listener by its status.
func (r *haproxyRow) kind() string {
	if t := r.cell("type"); t != "" {
		return t
	}
	switch {
	case r.cell("svname") == "FRONTEND":
		return "0"
	case r.cell("svname") == "BACKEND":
		return "1"
	case r.cell("status") == "OPEN":
		return "3"
	}
	return "2"
}

// cell returns a column's text; "" where the version has no such column.
func (r *haproxyRow) cell(column string) string {
	if i, ok := r.columns[column]; ok {
		return strings.TrimSpace(r.cells[i])
	}
	return ""
}

// number returns a column's number. An empty cell is not 0: it is unknown, as is all of a row that does not exist.
func (r *haproxyRow) number(column string) *uint64 {
	if r == nil {
		return nil
	}
	n, err := strconv.ParseUint(r.cell(column), 10, 64)
	if err != nil {
		return nil
	}
	return &n
}

// stopped says whether a frontend takes no connections because an operator stopped it.
func (r *haproxyRow) stopped() bool {
	status := r.cell("status")
	return status == "STOP" || status == "PAUSED"
}

// server returns what the row says of a server, and whether its status is a known one.
func (r *haproxyRow) server() (Server, bool) {
	s := Server{Name: r.cell("svname"), Address: r.cell("addr"), State: StateUnknown}
	status := r.cell("status")
	if s.Address == "" && status != "MAINT (resolution)" { // which has none for the moment, and keeps its name
		// Servers of different backends are often called alike, and without an address the name is all there is.
		s.Name = r.cell("pxname") + "/" + s.Name
	}
	word, detail, _ := strings.Cut(status, " ")
	switch word {
	case "UP":
		s.State = StateUp
	case "DOWN":
		s.State = StateDown
	case "DRAIN", "NOLB":
		s.State = StateDrain
	case "MAINT":
		s.State = StateMaint
	}
	if status == "no check" {
		s.State = StateUp
	}
	switch {
	case s.State == StateDown:
		s.Reason = r.failure(status)
	case s.State == StateUnknown:
		s.Reason = fmt.Sprintf("status %q is not known", printable(status, 40))
	case detail != "" || word == "NOLB":
		s.Reason = status
	}
	return s, s.State != StateUnknown
}

// failure says why a server is down.
func (r *haproxyRow) failure(status string) string {
	// While a check runs, its last result is marked by a star.
	check := strings.TrimSpace(strings.TrimPrefix(r.cell("check_status"), "*"))
	code, last := r.cell("check_code"), r.cell("last_chk")
	if strings.Contains(status, "(agent)") {
		check, code, last = "agent check", "", r.cell("agent_desc")
	}
	switch {
	case check == "":
		return status
	case code != "":
		return check + " " + code
	case last != "":
		return check + ": " + last
	}
	return check
}
