package main

import (
	"fmt"
	"time"

	"gslbd/admin"
	"gslbd/dns"
	"gslbd/state"
)

// ready reports whether the server should get queries, and why not. It is never failed by health (docs/operations.md).
func (s *server) ready() (bool, string) {
	if s.stopping.Load() {
		return false, "stopping"
	}
	if n := s.monitor.Pending(); n > 0 && s.from == nil && time.Since(s.started) < firstChecks {
		return false, fmt.Sprintf("%d first checks are not done", n)
	}
	return true, ""
}

// problems tells of what is wrong and stands in no snapshot.
func (s *server) problems() []admin.Problem {
	var all []admin.Problem
	if why := s.geo.Failing(); why != "" {
		all = append(all, admin.Problem{Severity: admin.Warning, Subject: "gslbd", Text: "keeps a geo database as it was read before: " + why})
	}
	if why := s.dns.CertificateProblem(); why != "" {
		all = append(all, admin.Problem{Severity: admin.Warning, Subject: "gslbd", Text: "DNS over TLS: " + why})
	}
	if tables, ok := s.store.Snapshot().Zones.(*dns.Tables); ok {
		for _, z := range tables.DNSSEC(time.Now()) {
			if z.Problem != "" {
				all = append(all, admin.Problem{Severity: admin.Warning, Subject: "zone " + z.Name, Text: "DNSSEC: " + z.Problem})
			}
		}
	}
	if why := s.store.Unkept(); why != "" {
		all = append(all, admin.Problem{Severity: admin.Warning, Subject: "gslbd", Text: "cannot keep its state, which a restart would forget: " + why})
	}
	if why := s.untaken.Load(); why != nil {
		all = append(all, admin.Problem{Severity: admin.Warning, Subject: "gslbd", Text: "the last takeover failed, and the process before it goes on: " + *why})
	}
	for _, p := range s.secrets.problems(time.Now()) {
		all = append(all, admin.Problem{Severity: admin.Warning, Subject: "gslbd", Text: p.setting + ": " + p.why})
	}
	for _, f := range s.receiver.Refusals() {
		all = append(all, admin.Problem{Severity: admin.Warning, Subject: "site " + f.Site, Text: "its reports are refused: " + f.Why, Since: f.Since})
	}
	return all
}

// zones lists the zones in force.
func zones(snap *state.Snapshot) []admin.Zone {
	var all []admin.Zone
	for _, z := range snap.Zones.(*dns.Tables).Zones() {
		all = append(all, admin.Zone{Name: z.Name, Serial: z.Serial, Records: z.Records, ECS: z.ECS})
	}
	return all
}

// signedZones lists the zones in force that are signed.
func signedZones(snap *state.Snapshot) []admin.SignedZone {
	var all []admin.SignedZone
	for _, z := range snap.Zones.(*dns.Tables).DNSSEC(time.Now()) {
		signed := admin.SignedZone{Name: z.Name, Keys: []admin.Key{}, Problem: z.Problem}
		for _, k := range z.Keys {
			key := admin.Key{
				Tag: k.Tag, Role: string(k.Role), Algorithm: k.Algorithm, State: string(k.Phase), Synced: k.Synced, File: k.File, DS: k.DS,
			}
			if !k.Next.IsZero() {
				key.Next = &k.Next
			}
			signed.Keys = append(signed.Keys, key)
		}
		all = append(all, signed)
	}
	return all
}

// find resolves a name as a query would: aliases and wildcards included.
func find(snap *state.Snapshot, name string) (svc *state.Service, ecs, ok bool) {
	index, ecs, ok := snap.Zones.(*dns.Tables).Find(name)
	if !ok {
		return nil, false, false
	}
	return snap.Services[index], ecs, true
}
