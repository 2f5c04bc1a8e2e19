package control

import "time"

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

// An Order forces the state of members (docs/operations.md). It is immutable: another one or a tombstone follows it.
type Order struct {
	ID      string    `json:"id"`      // a UUIDv7, given by the client, so that sending it twice is one order
	Created time.Time `json:"created"` // by the client's clock; at most 30 s off the server's
	Author  string    `json:"author"`
	Reason  string    `json:"reason"`
	Expires time.Time `json:"expires,omitzero"` // zero: never
	Target  Target    `json:"target"`
	Action  string    `json:"action"` // up, drain or down
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
