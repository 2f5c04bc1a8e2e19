package state

import (
	"testing"
	"unsafe"
)

// What a query of most policies reads of many services, members and sites lies on the first lines of each.
func TestHotFieldsStandTogether(t *testing.T) {
	const line = 64
	var (
		svc Service
		m   Member
		st  Site
		in  SiteInfo
		n   serviceCounts
	)
	for name, c := range map[string]struct {
		end   uintptr // of the last field of those
		lines uintptr
	}{
		"Service, to count":           {unsafe.Offsetof(svc.usesRTT) + unsafe.Sizeof(svc.usesRTT), 1},
		"Service, to decide":          {unsafe.Offsetof(svc.Ready) + unsafe.Sizeof(svc.Ready), 2},
		"Member, to answer it":        {unsafe.Offsetof(m.Addr) + unsafe.Sizeof(m.Addr[V4]), 1}, // by IPv4
		"Member, to compare it":       {unsafe.Offsetof(m.Preference) + unsafe.Sizeof(m.Preference), 2},
		"serviceCounts, to count":     {unsafe.Offsetof(n.counters) + unsafe.Offsetof(n.counters.own) + unsafe.Sizeof(n.counters.own), 1},
		"Site, to compare it":         {unsafe.Offsetof(st.NewSessions) + unsafe.Sizeof(st.NewSessions), 1},
		"SiteInfo, to compare places": {unsafe.Offsetof(in.Location) + unsafe.Sizeof(in.Location), 1},
	} {
		if c.end > c.lines*line {
			t.Errorf("%s: %d octets are more than %d cache lines", name, c.end, c.lines)
		}
	}
	if size := unsafe.Sizeof(MemberCounts{}); line%size != 0 {
		t.Errorf("what queries write of a member takes %d octets, which may cross a line", size)
	}
	if size := unsafe.Sizeof(ReadyCandidate{}); line%size != 0 {
		t.Errorf("a ReadyCandidate takes %d octets, which may cross a line", size)
	}
	// What has so many octets begins on a line of its own.
	if size := unsafe.Sizeof(n); size%line != 0 {
		t.Errorf("serviceCounts have %d octets, so that only some begin on a line", size)
	}
	// Members of a service lie one after the other.
	if size := unsafe.Sizeof(m); size%line != 0 {
		t.Errorf("a Member has %d octets, so that only some begin on a line of their own", size)
	}
}
