package admin

import (
	"net/http"
	"time"
)

// DNSSEC is the answer to GET /v1/dnssec.
type DNSSEC struct {
	Time  time.Time    `json:"time"`
	Zones []SignedZone `json:"zones"` // in the order of the configuration
}

// A SignedZone is one zone that is signed.
type SignedZone struct {
	Name    string `json:"name"`
	Keys    []Key  `json:"keys"`
	Problem string `json:"problem,omitempty"` // why its keys are not as their files say
}

// A Key is one key of a signed zone.
type Key struct {
	Tag       uint16     `json:"tag"`
	Role      string     `json:"role"` // csk, ksk or zsk
	Algorithm string     `json:"algorithm"`
	State     string     `json:"state"`          // generated, published, active, retired or removed
	Next      *time.Time `json:"next,omitempty"` // when that, or what CDS says, changes by the times in the file
	Synced    bool       `json:"cds,omitempty"`  // CDS and CDNSKEY ask the parent for its DS
	File      string     `json:"file"`           // of the private half
	DS        string     `json:"ds,omitempty"`   // the record for the parent; none of a zsk
}

func (s *Server) dnssec(w http.ResponseWriter, _ *http.Request) {
	v := DNSSEC{Time: time.Now(), Zones: []SignedZone{}}
	if snap := s.opts.Snapshot(); snap != nil && s.opts.SignedZones != nil {
		v.Zones = append(v.Zones, s.opts.SignedZones(snap)...)
	}
	answer(w, v)
}
