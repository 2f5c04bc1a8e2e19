package main

import (
	"net/netip"

	"gslbd/config"
	"gslbd/geo"
	"gslbd/state"
)

// The configuration's words, which config has validated, as the rooms spell them.
var (
	onAllDown = map[string]state.OnAllDown{
		"all": state.AllDownAll, "last-known-good": state.AllDownLastKnownGood, "backup": state.AllDownBackup,
		"nodata": state.AllDownNoData, "servfail": state.AllDownServFail,
	}
	onDead   = map[string]state.OnDead{"check": state.DeadCheck, "keep": state.DeadKeep, "down": state.DeadDown}
	failback = map[string]state.Failback{"auto": state.FailbackAuto, "delay": state.FailbackDelay, "manual": state.FailbackManual}
	roles    = map[string]state.Role{"primary": state.Primary, "backup": state.Backup}
)

func location(l config.Location) geo.Location {
	return geo.Location{
		Continent: l.Continent, Country: l.Country, Subdivision: l.Subdivision,
		Latitude: l.Latitude, Longitude: l.Longitude, HasCoordinates: l.HasCoordinates,
	}
}

// byFamily returns the member's addresses by family; a family that it lacks is the zero Addr.
func byFamily(m config.Member) (addrs [2]netip.Addr) {
	for _, a := range m.Addresses {
		if a.Is4() {
			addrs[state.V4] = a
		} else {
			addrs[state.V6] = a
		}
	}
	return addrs
}
