package state

import "time"

// Orders are what operators have ordered, resolved for the present moment by control. The functions must be fast and
// must not call the Store. Nil functions stand for no orders.
type Orders struct {
	// Force returns what is ordered for a member of a service, which stands at a site of a zone.
	Force func(service, member, site, zone string) Force
	// Latch returns what holds a service of failback: manual in its backups.
	Latch func(service string) Latch
	// Site returns what an evacuation wants the agents of a site to do.
	Site func(site, zone string) SiteOrders
}

// A Force is what is ordered for one member.
type Force struct {
	Forced Forced
	Why    string    // shown to people: by whom and for what reason
	Since  time.Time // when it was ordered
	Stages []Stage   // of staged evacuations below 100 %; the Store keeps no reference
}

// A Stage moves a share of the clients away from a member. Which clients is a hash of the order and the client's network,
// so that all members of the order lose the same clients.
type Stage struct {
	Order uint64  // HashName of the order's id
	Share float64 // above 0 and below 1
	Why   string  // shown to people
}

// A Latch holds a service of failback: manual in its backups until an operator says otherwise.
type Latch struct {
	ID  string // of the latch in force; "": none
	Why string // shown to people: who failed over, and when
	// Failback is the id of the last order to fail back, "" if there was none. Another one than before ends a hold that no
	// latch stands for yet.
	Failback string
}

// SiteOrders are what an evacuation of type agent wants of a site.
type SiteOrders struct {
	Drain   bool             // servers that are up behind the virtual servers of members are to be set to drain
	Restore []DrainedServers // servers that were, and are to be set back
}

// DrainedServers are servers of one virtual server that an agent has set to drain.
type DrainedServers struct {
	VirtualServer string   `json:"virtual_server"`
	Servers       []string `json:"servers"` // names
}

// Failback says how a service leaves its backups once its primaries suffice again (docs/operations.md).
type Failback uint8

// The choices of failback.
const (
	FailbackAuto   Failback = iota // at once
	FailbackDelay                  // when the condition has held throughout failback_delay
	FailbackManual                 // when an operator says so
)

// String returns the configuration's word.
func (f Failback) String() string { return [...]string{"auto", "delay", "manual"}[f] }

// A ServiceState is what the agents of a site are told of one of its services, for connection draining.
type ServiceState struct {
	Name           string
	State          string        // "active", "draining" or "inactive"
	Deadline       time.Duration // from now; 0 unless draining
	VirtualServers []string      // by name, or address:port where it has none
}
