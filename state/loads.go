package state

import (
	"sync"
	"time"
)

const (
	// loadEvery is how far the points of a site's past load are apart, and loadPoints how many there are: an hour.
	loadEvery  = 30 * time.Second
	loadPoints = 120
)

// A LoadPoint is the load of a site at one moment.
type LoadPoint struct {
	At       time.Time
	Sessions int64 // open; below 0: not known
	Bits     int64 // per second, the greater of in and out; below 0: not known
	Age      int64 // of the last report, in milliseconds; below 0: there was none
}

// loads is the load of the last hour. It does not outlive the process.
type loads struct {
	mu     sync.Mutex
	last   time.Time              // guarded by mu: when points were last taken
	points map[uint16][]LoadPoint // guarded by mu, by SiteInfo.ID; the oldest first
}

// sample takes a point of each site, if it is time to.
func (l *loads) sample(snap *Snapshot, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if snap == nil || now.Sub(l.last) < loadEvery {
		return
	}
	l.last = now
	points := make(map[uint16][]LoadPoint, len(snap.Sites)) // those that are gone are forgotten
	for _, site := range snap.Sites {
		p := LoadPoint{now, -1, -1, -1}
		if site.HasLoad && site.HasSessions {
			p.Sessions = int64(site.Sessions)
		}
		if site.HasLoad && site.HasBits {
			p.Bits = int64(max(site.BitsIn, site.BitsOut))
		}
		if !site.ReportAt.IsZero() {
			p.Age = max(0, now.Sub(site.ReportAt).Milliseconds())
		}
		past := l.points[site.ID]
		past = past[max(0, len(past)-loadPoints+1):]
		points[site.ID] = append(past, p)
	}
	l.points = points
}

// Loads returns the load of a site in the last hour, a point every 30 seconds, the oldest first.
func (s *Store) Loads(site *Site) []LoadPoint {
	s.loads.mu.Lock()
	defer s.loads.mu.Unlock()
	past := s.loads.points[site.ID]
	return past[:len(past):len(past)] // what is behind is written once, and not read here
}
