package state

import (
	"net/netip"
	"time"

	"gslbd/geo"
)

// Config is what a Store is configured with. It is plain validated data; the Store keeps no reference to the caller's
// slices.
type Config struct {
	Sites    []SiteConfig
	Services []ServiceConfig

	StaleAfter time.Duration // default 15s
	DeadAfter  time.Duration // default 60s
	RTT        RTTConfig

	Zones any // published as Snapshot.Zones
}

// SiteConfig configures one site.
type SiteConfig struct {
	Name, Zone, Region string
	Location           geo.Location
	Cost               int

	SessionsLimit  uint64        // open sessions; 0: no threshold
	BandwidthLimit uint64        // bits per second; 0: no threshold
	Resume         float64       // share of the thresholds, default 0.9
	Hold           time.Duration // default 30s
	ShedFrom       float64       // utilisation from which load is shed, above 0 and below 1; 0: off
	CascadeGuard   bool          // shed by where the load is heading as well
}

// Threshold is min_healthy: a number of servers, or a share of those that count.
type Threshold struct {
	Count int
	Share float64 // 0..1; used when above 0
}

// ServiceConfig configures one service.
type ServiceConfig struct {
	Name       string // lower case, no final dot
	Aliases    []string
	TTL        uint32 // seconds
	Answers    int
	MinHealthy Threshold
	OnAllDown  OnAllDown
	LastResort []netip.Addr
	OnDead     OnDead
	UnknownUp  bool // unknown_as
	SlowStart  time.Duration

	FailoverRatio float64 // 0..1, see docs/operations.md
	Failback      Failback
	FailbackDelay time.Duration
	DrainTimeout  time.Duration // of connection draining; 0: it is off, and sessions end one TTL after the change
	MinServing    int           // members that are up which an evacuation must leave

	PolicyName string
	Chain      any           // published as Service.Chain
	UsesRTT    bool          // the chain has rtt enabled: its sites probe the resolvers that ask for it
	HalfLife   time.Duration // of the decay of Selections; default 60s

	// HasCheck says that gslbd itself checks the members' addresses and sends CheckResults.
	HasCheck      bool
	CheckInterval time.Duration // of that check; default 10s

	Members []MemberConfig
}

// MemberConfig configures one member.
type MemberConfig struct {
	Name           string
	Site           string
	Addresses      [2]netip.Addr // by Family
	CNAME          string
	Weight         int
	Preference     int
	Role           Role
	Port           uint16 // 0: any
	Protocol       string // tcp, udp or "" for any
	VirtualServers []string
}

// RTTConfig configures probing and the RTT table.
type RTTConfig struct {
	PrefixV4, PrefixV6 int           // 24 and 56
	Refresh            time.Duration // 5m: at most one probe per resolver, site and refresh
	SilentFor          time.Duration // 10m
	MaxTargets         int           // 100,000
	MaxSites           int           // 8
	Exempt             []netip.Prefix
	Methods            []RTTMethod // in the order to try; icmp
}

// ServerState is what a report says of one server.
type ServerState uint8

// The states of a server. Unknown counts as if the server were not listed.
const (
	ServerUnknown ServerState = iota
	ServerUp
	ServerDown
	ServerDrain
	ServerMaint
)

// A Report is one accepted report of a site, decoded and within bounds. Its age counts from its arrival, which is when
// Store.Report is called.
type Report struct {
	Site  string
	Agent string // "default" when the sender gave none

	HasSessions     bool
	Sessions        uint64
	HasNewSessions  bool
	NewSessions     float64 // per second
	HasBits         bool
	BitsIn, BitsOut uint64 // per second
	VirtualServers  []VirtualServer
	RTTs            []RTTSample

	Drained  []DrainedServers // that the agent has set to drain for us
	Warnings []string         // of the agent
}

// A VirtualServer is one VIP and port of a site's SLB.
type VirtualServer struct {
	Name     string
	Address  netip.Addr // invalid: not given
	Port     uint16     // 0: not given
	Protocol string     // "tcp", "udp" or ""
	Servers  []Server   // empty: the report carries no health for it
}

// A Server is one machine behind a virtual server.
type Server struct {
	Name    string
	Address string // as reported; identifies the server across virtual servers, with Name when empty
	State   ServerState
	Reason  string
}

// An RTTSample is one round trip that a site measured.
type RTTSample struct {
	Resolver netip.Addr
	RTT      time.Duration
	Lost     bool
	Age      time.Duration // before the arrival of the report, by the site's own measure
	Method   RTTMethod

	Connections int // of RTTPassive: how many it is of; 0: not told
}

// A ReportResult is what the Store tells the sender of a report.
type ReportResult struct {
	Warnings []string
	Probe    []ProbeTarget // resolvers to measure now, at most 2,000

	Services  []ServiceState   // of the site, for connection draining
	Drain     []string         // virtual servers to drain, as ServiceState names them
	Restore   []DrainedServers // servers to set back
	DeadAfter time.Duration
}

// A ProbeTarget is a resolver that a site shall measure.
type ProbeTarget struct {
	Resolver netip.Addr
	Methods  []RTTMethod // in the order to try; shared, not to be changed
}

// A CheckResult is the state of one own check of a member's address, after rise and fall.
type CheckResult struct {
	Service, Member string
	Family          Family
	Up              bool
	Err             string        // why the last run failed, or why it is not up; empty: up, and the last run succeeded
	Unrunnable      bool          // the check cannot be run (no permission, no CA): it is no source
	Unreachable     bool          // failed by timeout or unreachable only, which does not prove that our network works
	Latency         time.Duration // of a success; 0: unknown
}
