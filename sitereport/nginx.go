package sitereport

import (
	"context"
	"errors"
	"regexp"
	"strconv"
	"time"
)

// A NginxStatus reads the page of nginx's stub_status (ngx_http_stub_status_module): the load of a whole nginx process, and
// no servers. Its reading so supplies the sessions of virtual servers that others tell of.
//
//	Active connections      sessions, without the one that asks
//	accepts                 new sessions a second, as what it grew by since the last reading
//
// It is for one reader at a time.
type NginxStatus struct {
	source  *source
	accepts growth // owned by Read
}

// NewNginxStatus returns a reader of the page at o.URL.
func NewNginxStatus(o HTTPOptions) (*NginxStatus, error) {
	s, err := newSource("nginx", o)
	if err != nil {
		return nil, err
	}
	return &NginxStatus{source: s}, nil
}

// Read reads the page once.
func (n *NginxStatus) Read(ctx context.Context) (Reading, error) {
	ctx, cancel := context.WithTimeout(ctx, n.source.timeout)
	defer cancel()
	r := Reading{Supplies: FigureSessions | FigureNewSessions}
	page, err := n.source.get(ctx, "", "")
	if err == nil {
		if err = n.interpret(time.Now(), page, &r); err == nil {
			return r, nil
		}
	}
	n.accepts.reset()
	return r, n.source.failed(err)
}

func (n *NginxStatus) interpret(now time.Time, page []byte, r *Reading) error {
	active, accepts, err := parseNginxStatus(page)
	if err != nil {
		return err
	}
	// The reader's own connection is kept open from one reading to the next, and so is never a new one.
	r.Load.Sessions = whole(active-min(active, 1), MaxSessions)
	r.Load.NewSessions = perSecond(n.accepts.rates(now, map[string]float64{"accepts": accepts}))
	return nil
}

// nginxStatus is the page. Forks of nginx add a fourth counter.
var nginxStatus = regexp.MustCompile(`^Active connections: ([0-9]{1,20}) *\r?\nserver accepts handled requests( request_time)? *\r?\n ` +
	`([0-9]{1,20}) [0-9]+ [0-9]+( [0-9]+)? *\r?\nReading: [0-9]+ Writing: [0-9]+ Waiting: [0-9]+\s*$`)

// parseNginxStatus reads the page: the connections that are open, those of nobody's request among them, and those accepted
// since nginx was started.
func parseNginxStatus(page []byte) (active, accepts float64, err error) {
	m := nginxStatus.FindSubmatch(page)
	if m == nil {
		return 0, 0, errors.New("it does not answer with the page of stub_status: is \"stub_status;\" in that location?")
	}
	if active, err = strconv.ParseFloat(string(m[1]), 64); err == nil {
		accepts, err = strconv.ParseFloat(string(m[3]), 64)
	}
	return active, accepts, err
}
