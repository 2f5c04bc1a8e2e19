package state

import (
	"net/netip"
	"sync/atomic"
	"time"

	"gslbd/geo"
)

// Location is geo's, under a name that policy, dns and admin may use without importing geo.
type Location = geo.Location

// A Family is an address family: what a question of type A or AAAA asks for.
type Family uint8

// The two families. They index every [2] array of this package.
const (
	V4 Family = iota
	V6
)

// String returns "ipv4" or "ipv6".
func (f Family) String() string {
	if f == V6 {
		return "ipv6"
	}
	return "ipv4"
}

// Other returns the other family.
func (f Family) Other() Family { return 1 - f }

// A Role says in which pool a member stands (failover seed).
type Role uint8

// The roles.
const (
	Primary Role = iota
	Backup
)

// String returns the configuration's word.
func (r Role) String() string {
	if r == Backup {
		return "backup"
	}
	return "primary"
}

// Forced is the state that operators have ordered, kept apart from the measured one. A larger value is more
// restrictive and wins.
type Forced uint8

// The forced states. ForcedUp overrides the measurement only.
const (
	NotForced Forced = iota
	ForcedUp
	ForcedDrain
	ForcedDown
	ForcedEvacuated
)

// String returns the order's action, or "" for NotForced.
func (f Forced) String() string {
	return [...]string{"", "up", "drain", "down", "evacuated"}[f]
}

// OnAllDown says what a service answers when no candidate of the asked family is up.
type OnAllDown uint8

// The choices of on_all_down.
const (
	AllDownAll OnAllDown = iota
	AllDownLastKnownGood
	AllDownBackup
	AllDownNoData
	AllDownServFail
)

// String returns the configuration's word.
func (o OnAllDown) String() string {
	return [...]string{"all", "last-known-good", "backup", "nodata", "servfail"}[o]
}

// OnDead says what becomes of a member whose site's reports died, or no longer list its virtual server.
type OnDead uint8

// The choices of on_dead.
const (
	DeadCheck OnDead = iota // gslbd's own check decides; where there is none: down
	DeadKeep
	DeadDown
)

// String returns the configuration's word.
func (o OnDead) String() string { return [...]string{"check", "keep", "down"}[o] }

// Freshness says how old a site's last report is.
type Freshness uint8

// A site is NeverReported until its first report, then Fresh, Stale (older than stale_after) and Dead (older than
// dead_after).
const (
	NeverReported Freshness = iota
	Fresh
	Stale
	Dead
)

// String returns the word that status and logs use.
func (f Freshness) String() string {
	return [...]string{"never reported", "fresh", "stale", "dead"}[f]
}

// A Snapshot is all that a query may know, at one moment. It and all that it points to are immutable, except for what
// says that it is atomic (RTT, Rotation, Counters). Readers load it once a query.
type Snapshot struct {
	Version   uint64 // counts publications
	Epoch     uint64 // counts configurations; Zones and every Service.Chain belong to it
	Published time.Time

	Sites    []*Site    // in the order of the configuration; Site.Index indexes it
	Services []*Service // in the order of the configuration; Service.Index indexes it
	RTT      *RTTTable  // never nil
	Geo      *geo.DB    // never nil; without databases and overrides it knows no address

	// Zones is what dns built for this configuration. It is opaque here and published together with the services, so
	// that a query never sees the zones of one configuration and the services of another.
	Zones any

	// Calm says that no site is overloaded or sheds clients. False: one may.
	Calm bool

	Blind      bool // all feeds failed at once: the fault is ours, and states are frozen
	BlindSince time.Time
	BlindWhy   string
}

// ServiceByName returns the service with this name or alias (lower case, no final dot), or nil. A wildcard service is
// found only by its own name ("*.cdn.example.com").
func (s *Snapshot) ServiceByName(name string) *Service {
	for _, svc := range s.Services {
		if svc.Name == name {
			return svc
		}
		for _, a := range svc.Aliases {
			if a == name {
				return svc
			}
		}
	}
	return nil
}

// A SiteInfo is what the configuration says of a site. Members point to it rather than to the Site, so that a report
// makes one Site anew and not all members there.
type SiteInfo struct {
	ID           uint16    // stable over reloads within a process; keys the RTT table
	Index        int       // in Snapshot.Sites
	Location     *Location // never nil
	Name         string
	Zone, Region string
	Cost         int
}

// Of many sites, services and members a query finds little in the processor's caches, so what it reads stands together at
// the beginning of each: TestHotFieldsStandTogether knows what that is.

// A Site is one data centre as it is known now.
type Site struct {
	*SiteInfo

	Freshness      Freshness
	RTTBlind       bool
	HasUtilisation bool
	Overloaded     bool
	HasNewSessions bool
	Utilisation    float64
	Shed           float64 // share of clients that skip the site, 0..1
	NewSessions    float64 // mean per second over the last (up to) 5 reports, while fresh: HasNewSessions

	ReportAt time.Time // arrival of the last accepted report; zero: never
	Agent    string    // the agent that holds the site
	Since    time.Time // of Freshness

	// Load is of the last fresh report; HasLoad is false when there is none or it is not fresh.
	HasLoad         bool
	HasSessions     bool // the load tells of sessions
	Sessions        uint64
	HasBits         bool   // the load tells of bandwidth
	BitsIn, BitsOut uint64 // per second

	// Utilisation is max(sessions/threshold, max(in, out)/threshold); HasUtilisation is false without fresh load or
	// without thresholds. Overloaded stands until a fresh report or until the site is dead, so it may be true when
	// HasUtilisation is false.
	SessionsLimit, BandwidthLimit uint64 // the thresholds; 0: none
	OverloadedSince               time.Time
	OverloadedWhy                 string
	Heading                       float64 // utilisation that its new sessions lead to, with cascade_guard; 0: not known

	HasServers bool
	ServersUp  int // servers up behind all virtual servers of the last fresh report

	RTTBlindSince time.Time
	Warnings      []string // of the last report, and those that its agent sent

	// What all agents of the site say whose reports are fresh, the holder or not: each stands beside an SLB of its own.
	Drained []DrainedServers // the servers that they set to drain because an evacuation asked for it
	InDrain []DrainedServers // the servers that are in drain; of those that are to be restored also the unknown ones, and those of silent agents
	Listed  []string         // the virtual servers that match members, as ServiceState names them
}

// A Service is one load-balanced name.
type Service struct {
	// Chain is the *policy.Chain that decides for this service. It is opaque here, like Snapshot.Zones.
	Chain    any
	TTL      uint32         // seconds
	id       uint32         // stable over reloads; 0 in a Service that no Store made
	Answers  int            // 1..10
	Rotation *Rotation      // never nil in a snapshot that a Store published
	Counters *Counters      // likewise
	sampled  *atomic.Uint64 // see reservoir; likewise
	usesRTT  bool

	// Ready is by Family what Chain.Prepare has worked out for all queries.
	Ready [2]Ready

	Members   []*Member     // in the order of the configuration
	SlowStart time.Duration // 0: off

	// The pool in force: the members with InPool. See docs/operations.md.
	Pool       Role
	StagedPool Role // the pool that would be in force if all staged orders stood at 100 %
	OnAllDown  OnAllDown

	Index      int
	Name       string // lower case, no final dot; may begin with "*."
	Aliases    []string
	LastResort []netip.Addr // without the addresses of members that are evacuated, forced down or being moved away from
	PolicyName string

	PoolSince time.Time
	PoolWhy   string

	// PoolTransitions counts the changes of Pool since the start of the process.
	PoolTransitions uint64

	// The primaries' servers that count in the failover share, and how many of them are healthy. As of PoolWhy.
	PoolServersUp, PoolServers int

	Failback   Failback
	Held       bool      // the primaries suffice again, and failback holds the backups in force
	HeldWhy    string    // shown to people
	HeldUntil  time.Time // of failback: delay, unless the condition breaks; zero: not known, since an operator must say so, while blind, or until the primaries are heard of after a restart
	Unlatched  bool      // failback: manual holds it, or would, and no latch stands for that yet: control makes one
	MinServing int       // members that are up which an evacuation must leave
}

// Ready are the candidates that every query of a family begins with, whoever asks: what the constraints leave. Without any,
// each query works them out by itself. Two of them stand on a cache line, with all that most chains compare of them and that
// an answer by IPv4 says of them: their members are not read then.
type Ready struct {
	Candidates []ReadyCandidate
	Skip       uint32 // the steps of the chain that keep them all, and any of them: 1<<i for the step i
	Reason     uint8  // of the decision, if no metric settles it
}

// A ReadyCandidate is one of them.
type ReadyCandidate struct {
	Member     *Member
	Counts     *MemberCounts // Member.MemberCounts
	Weight     int32         // Member.Weight
	Addr4      [4]byte       // Member.Addr[V4]
	HasAddr4   bool
	Down       bool   // health rejects it
	Preference int16  // Member.Preference
	Index      uint16 // Member.Index
	Site       uint16 // Member.Site.Index
}

// A Member is one VIP, or CNAME target, of a service at one site.
type Member struct {
	Index int

	*MemberCounts // never nil in a snapshot that a Store published

	Addr  [2]netip.Addr // by Family; invalid: none. With CNAME both are invalid and the member has both families
	CNAME string        // target, or ""

	SelectedApart *Selections // likewise
	Site          *SiteInfo   // of Snapshot.Sites, see SiteOf
	InPool        bool
	InStagedPool  bool // of Service.StagedPool
	Forced        Forced
	Role          Role
	Up            [2]bool // by Family: measured, damped and frozen state with orders "up" applied. False for a family that it lacks
	LastGood      [2]bool // true for those that were up just before the last member of that family that may be answered went down
	Weight        int     // 0..; 100 is neutral
	Preference    int     // 0..1000, higher is better

	Moved     []Stage      // staged orders, each of which moves a share of the clients away
	Hash      uint64       // HashName(Name): the same in every process, for rendezvous hashing
	Recovered [2]time.Time // by Family: when it last came up from down, for slow start; zero: never was down

	Name        string
	ForcedWhy   string
	ForcedSince time.Time
	Since       [2]time.Time // of Up
	Why         [2]string    // of Up

	HasServers bool
	ServersUp  int // servers up behind the member's virtual servers; meaningful with HasServers
	Servers    int // servers that count (not in maintenance or drain)

	// CheckError says, while the own check cannot be run, why; it is then no source.
	CheckError [2]string

	// Transitions counts the changes of Up, both families together, since the start of the process.
	Transitions uint64

	HasLatency [2]bool
	Latency    [2]time.Duration // of the last successful own check

	_ [24]byte // members of a service lie one after the other: each is to begin on a line
}

// SiteOf returns the member's site as it is known in s, whose member m must be.
func (s *Snapshot) SiteOf(m *Member) *Site { return s.Sites[m.Site.Index] }

// Has reports whether the member can answer for the family.
func (m *Member) Has(f Family) bool { return m.Addr[f].IsValid() || m.CNAME != "" }

// AnyUp reports whether any family of the member is up.
func (m *Member) AnyUp() bool { return m.Up[V4] || m.Up[V6] }

// HashName is FNV-1a (64 bit) of name. It is the same in every process and version, so that a fleet agrees.
func HashName(name string) uint64 {
	h := uint64(14695981039346656037)
	for i := 0; i < len(name); i++ {
		h ^= uint64(name[i])
		h *= 1099511628211
	}
	return h
}
