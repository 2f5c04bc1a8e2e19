package probes

// A Standing is what a Monitor knows of one check, for the process that takes over.
type Standing struct {
	Check     Check  `json:"check"`
	Up        bool   `json:"up"`
	Successes int    `json:"successes"` // consecutive, up to now
	Failures  int    `json:"failures"`  // the same
	Reason    string `json:"reason"`    // of the last failure
}

// Standings returns what is known of the checks that have been decided.
func (m *Monitor) Standings() []Standing {
	m.mu.Lock()
	defer m.mu.Unlock()
	var all []Standing
	for _, e := range m.entries {
		if h := e.health; h.known {
			all = append(all, Standing{e.check, h.up, h.successes, h.failures, h.reason})
		}
	}
	return all
}

// Resume has checks go on from where those of another Monitor stood, so that it takes as many failures as ever to bring one
// down. It comes after Set and before Run. A check that asks another target than the one of the same key starts anew.
func (m *Monitor) Resume(all []Standing) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, s := range all {
		if e := m.entries[s.Check.Key]; e != nil && sameTarget(e.check, s.Check) {
			e.health, e.decided = health{true, s.Up, s.Successes, s.Failures, s.Reason}, true
		}
	}
}
