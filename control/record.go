package control

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/google/uuid"
)

// The actions of an Order, the least restrictive first. "up" overrides the measurement only.
const (
	Up    = "up"
	Drain = "drain"
	Down  = "down"
)

// A Target names what an Order is for: exactly one of the four is set, to a name or a glob (path.Match).
type Target struct {
	Service string `json:"service,omitempty"`
	Member  string `json:"member,omitempty"` // a member's name in every service, or SERVICE/MEMBER
	Site    string `json:"site,omitempty"`
	Zone    string `json:"zone,omitempty"` // an id or one of its names in zone_aliases
}

// An Order forces the state of members (docs/orders.md). It is immutable: another one or a tombstone follows it.
type Order struct {
	ID      string    `json:"id"`      // a UUIDv7, given by the client, so that sending it twice is one order
	Created time.Time `json:"created"` // by the client's clock; at most 30 s off the server's
	Author  string    `json:"author"`
	Reason  string    `json:"reason"`
	Expires time.Time `json:"expires,omitzero"` // zero: never
	Target  Target    `json:"target"`
	Action  string    `json:"action"` // up, drain or down

	// Also is what else was given under the same id to gslbd that were cut off from each other; see merge. No client gives it.
	Also []Order `json:"also,omitempty"`
}

// The types of resources that an Evacuation takes out, in the order in which they are taken.
const (
	TypeMember = "member"
	TypeAgent  = "agent"
	TypeExec   = "exec"
)

// An Evacuation takes everything of some types that stands in a zone out of service. It is immutable.
type Evacuation struct {
	ID      string    `json:"id"`
	Created time.Time `json:"created"`
	Author  string    `json:"author"`
	Reason  string    `json:"reason"`
	Expires time.Time `json:"expires,omitzero"`
	Zone    string    `json:"zone"`  // an id or one of its names in zone_aliases
	Types   []string  `json:"types"` // default: member

	// Stages are the shares of clients that are moved away, above 0 and rising to 1; the first at Created, each of the
	// others PauseMS later. Empty: all at once.
	Stages  []float64 `json:"stages,omitempty"`
	PauseMS int64     `json:"pause_ms,omitempty"`

	// Zones are more of them, that were given under the same id to other gslbd; see merge. No client gives them.
	Zones []string `json:"zones,omitempty"`
}

// A Taken record is one line of the ledger: what an evacuation took of one resource.
type Taken struct {
	ID         string    `json:"id"` // EVACUATION/TYPE/RESOURCE, and for servers /SERVER
	Evacuation string    `json:"evacuation"`
	Zone       string    `json:"zone"`
	Type       string    `json:"type"`
	Resource   string    `json:"resource"` // SERVICE/MEMBER; SITE/VIRTUAL SERVER; the id that the program gave
	Removed    []string  `json:"removed"`  // addresses; servers; the state that the program gave
	Created    time.Time `json:"created"`
	Author     string    `json:"author"`
	Reason     string    `json:"reason"`
}

// A Restoration puts back what evacuations took. It is immutable, and done when nothing that it names is in the ledger.
type Restoration struct {
	ID          string    `json:"id"`
	Created     time.Time `json:"created"`
	Author      string    `json:"author"`
	Reason      string    `json:"reason,omitempty"`
	Types       []string  `json:"types"`       // all three where the request named none
	Evacuations []string  `json:"evacuations"` // ids

	// Also is what else was given under the same id to gslbd that were cut off from each other; see merge.
	Also []Restoration `json:"also,omitempty"`
}

// A Latch holds a service of failback: manual in its backups. A gslbd makes one when it fails over.
type Latch struct {
	ID      string    `json:"id"`
	Created time.Time `json:"created"`
	Service string    `json:"service"`
	Node    string    `json:"node"` // the gslbd that failed over
	Why     string    `json:"why"`
}

// A Failback ends the latches of a service: those that it names, and those that were created before it.
type Failback struct {
	ID      string    `json:"id"`
	Created time.Time `json:"created"`
	Author  string    `json:"author"`
	Reason  string    `json:"reason,omitempty"`
	Service string    `json:"service"`
	Latches []string  `json:"latches"`
}

// A Tombstone ends the record of the same id. An evacuation has one for each of its types: EVACUATION/TYPE.
type Tombstone struct {
	ID      string    `json:"id"`
	Created time.Time `json:"created"`
	Author  string    `json:"author"`
	Reason  string    `json:"reason,omitempty"`
}

// A Record is what is journaled and shared: exactly one of its fields is set.
type Record struct {
	Order       *Order       `json:"order,omitempty"`
	Evacuation  *Evacuation  `json:"evacuation,omitempty"`
	Taken       *Taken       `json:"taken,omitempty"`
	Restoration *Restoration `json:"restoration,omitempty"`
	Latch       *Latch       `json:"latch,omitempty"`
	Failback    *Failback    `json:"failback,omitempty"`
	Tombstone   *Tombstone   `json:"tombstone,omitempty"`
}

// maxText bounds names, authors and reasons; maxRecord bounds a record's JSON, which etcd would refuse above 1.5 MB.
const (
	maxText   = 256
	maxID     = 1024
	maxRecord = 1 << 20
)

// kinds are the names of the kinds of records, in the journal and in etcd.
var kinds = [...]string{"order", "evacuation", "taken", "restoration", "latch", "failback", "tombstone"}

// kind returns the record's kind and id; "" for a Record that holds nothing.
func (r Record) kind() (kind, id string) {
	switch {
	case r.Order != nil:
		return "order", r.Order.ID
	case r.Evacuation != nil:
		return "evacuation", r.Evacuation.ID
	case r.Taken != nil:
		return "taken", r.Taken.ID
	case r.Restoration != nil:
		return "restoration", r.Restoration.ID
	case r.Latch != nil:
		return "latch", r.Latch.ID
	case r.Failback != nil:
		return "failback", r.Failback.ID
	case r.Tombstone != nil:
		return "tombstone", r.Tombstone.ID
	}
	return "", ""
}

// key is what the record is kept under: KIND/ID.
func (r Record) key() string {
	kind, id := r.kind()
	return kind + "/" + id
}

// validate reports what is wrong with the record, wherever it came from. What depends on the present moment or on the
// configuration is not judged here.
func (r Record) validate() error {
	n := 0
	for _, set := range []bool{r.Order != nil, r.Evacuation != nil, r.Taken != nil, r.Restoration != nil, r.Latch != nil, r.Failback != nil, r.Tombstone != nil} {
		if set {
			n++
		}
	}
	switch {
	case n == 0:
		return fmt.Errorf("control: %w: the record is of no kind that this version of gslbd knows", ErrInvalid)
	case n > 1:
		return fmt.Errorf("control: %w: the record is of several kinds at once", ErrInvalid)
	}
	var c checks
	switch {
	case r.Order != nil:
		for _, o := range r.Order.contents() {
			c.uuid("id", o.ID)
			c.created(o.Created, o.Expires)
			c.text("author", o.Author, true)
			c.text("reason", o.Reason, true)
			c.err(o.Target.validate())
			if o.Action != Up && o.Action != Drain && o.Action != Down {
				c.add("action %q is not one of up, drain, down", o.Action)
			}
			c.also(r.Order.ID, o.ID, len(o.Also))
		}
	case r.Evacuation != nil:
		e := r.Evacuation
		c.uuid("id", e.ID)
		c.created(e.Created, e.Expires)
		c.text("author", e.Author, true)
		c.text("reason", e.Reason, true)
		for _, zone := range e.zones() {
			c.text("zone", zone, true)
		}
		c.types(e.Types)
		for i, s := range e.Stages {
			if !(s > 0 && s <= 1) || (i > 0 && s <= e.Stages[i-1]) {
				c.add("stages must rise, above 0 and up to 1")
				break
			}
		}
		if n := len(e.Stages); n > 0 && e.Stages[n-1] != 1 {
			c.add("the last stage must be 1 (100 %%)")
		}
		if e.PauseMS < 0 || e.PauseMS > maxPause.Milliseconds() {
			c.add("pause_ms %d is not between 0 and %d", e.PauseMS, maxPause.Milliseconds())
		}
	case r.Taken != nil:
		t := r.Taken
		c.id(t.ID)
		if !strings.HasPrefix(t.ID, t.Evacuation+"/"+t.Type+"/") {
			c.add("id %q does not begin with its evacuation and type", t.ID)
		}
		c.uuid("evacuation", t.Evacuation)
		c.types([]string{t.Type})
		c.created(t.Created, time.Time{})
	case r.Restoration != nil:
		for _, s := range r.Restoration.contents() {
			c.uuid("id", s.ID)
			c.created(s.Created, time.Time{})
			c.text("author", s.Author, true)
			c.text("reason", s.Reason, false)
			c.types(s.Types)
			c.also(r.Restoration.ID, s.ID, len(s.Also))
		}
	case r.Latch != nil:
		l := r.Latch
		c.uuid("id", l.ID)
		c.created(l.Created, time.Time{})
		c.text("service", l.Service, true)
	case r.Failback != nil:
		f := r.Failback
		c.uuid("id", f.ID)
		c.created(f.Created, time.Time{})
		c.text("author", f.Author, true)
		c.text("reason", f.Reason, false)
		c.text("service", f.Service, true)
	case r.Tombstone != nil:
		t := r.Tombstone
		c.id(t.ID)
		c.created(t.Created, time.Time{})
		c.text("author", t.Author, true)
		c.text("reason", t.Reason, false)
	}
	if len(c.wrong) > 0 {
		return fmt.Errorf("control: %w: %s", ErrInvalid, strings.Join(c.wrong, "; "))
	}
	return nil
}

// maxPause bounds the pause between two stages.
const maxPause = 24 * time.Hour

// checks collects all that is wrong with a record.
type checks struct{ wrong []string }

func (c *checks) add(format string, args ...any) {
	c.wrong = append(c.wrong, fmt.Sprintf(format, args...))
}

func (c *checks) err(err error) {
	if err != nil {
		c.wrong = append(c.wrong, err.Error())
	}
}

func (c *checks) uuid(field, id string) {
	// Only the canonical spelling, or one order could be known under two ids.
	if u, err := uuid.Parse(id); err != nil || u.String() != id || u.Version() != 7 || u.Variant() != uuid.RFC4122 {
		c.add("%s %s is not a UUID of version 7 in lower case", field, quote(id))
	}
}

func (c *checks) id(id string) {
	if id == "" || len(id) > maxID || !printable(id) {
		c.add("id %s must be 1 to %d bytes of printable text", quote(id), maxID)
	}
}

func (c *checks) created(created, expires time.Time) {
	// The bounds are those that JSON can write.
	for _, t := range []time.Time{created, expires} {
		if y := t.UTC().Year(); y < 1 || y > 9998 {
			c.add("the year %d is out of range", y)
		}
	}
	if created.IsZero() {
		c.add("created is missing")
	}
	if !expires.IsZero() && !expires.After(created) {
		c.add("expires (%s) is not after created (%s)", clock(expires), clock(created))
	}
}

func (c *checks) text(field, s string, required bool) {
	switch {
	case s == "" && required:
		c.add("%s is missing", field)
	case len(s) > maxText:
		c.add("%s has %d bytes, of at most %d", field, len(s), maxText)
	case !printable(s):
		c.add("%s %s must be printable text on one line", field, quote(s))
	}
}

// also checks what else was given under an id.
func (c *checks) also(id, its string, more int) {
	if its != id || more > 0 {
		c.add("also holds what was not given under %s", quote(id))
	}
}

func (c *checks) types(types []string) {
	if len(types) == 0 {
		c.add("types is empty; there are member, agent and exec")
	}
	for i, t := range types {
		if t != TypeMember && t != TypeAgent && t != TypeExec {
			c.add("type %s is not one of member, agent, exec", quote(t))
		} else if slices.Contains(types[:i], t) {
			c.add("type %s is given twice", t)
		}
	}
}

// printable reports whether s can be shown on one line of a terminal without surprises.
func printable(s string) bool {
	if !utf8.ValidString(s) {
		return false
	}
	return !strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) })
}

// quote shows what was sent, cut to what a line can bear.
func quote(s string) string {
	if len(s) > 64 {
		return fmt.Sprintf("%.64q…", s)
	}
	return strconv.Quote(s)
}

// clock writes a time as people and logs read it.
func clock(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// short is the tail of an id: its head is a time, which orders of the same minute share.
func short(id string) string {
	if len(id) > 8 {
		return id[len(id)-8:]
	}
	return id
}

// encode returns the record as JSON. Equal records give equal bytes, and the other way round.
func (r Record) encode() []byte {
	b, err := json.Marshal(r)
	if err != nil { // validate refuses the years that JSON cannot write
		panic(err)
	}
	return b
}

// decodeRecord reads a record as it was journaled or shared. Unknown fields are left out: gslbd are upgraded one by one.
func decodeRecord(b []byte) (Record, error) {
	if len(b) > maxRecord {
		return Record{}, fmt.Errorf("control: %w: the record has %d bytes, of at most %d", ErrInvalid, len(b), maxRecord)
	}
	var r Record
	if err := json.Unmarshal(b, &r); err != nil {
		return Record{}, fmt.Errorf("control: %w: the record is no JSON that can be read: %w", ErrInvalid, err)
	}
	if err := r.validate(); err != nil {
		return Record{}, err
	}
	return r, nil
}

func (r Record) createdAt() time.Time {
	switch {
	case r.Order != nil:
		return r.Order.Created
	case r.Evacuation != nil:
		return r.Evacuation.Created
	case r.Taken != nil:
		return r.Taken.Created
	case r.Restoration != nil:
		return r.Restoration.Created
	case r.Latch != nil:
		return r.Latch.Created
	case r.Failback != nil:
		return r.Failback.Created
	case r.Tombstone != nil:
		return r.Tombstone.Created
	}
	return time.Time{}
}
