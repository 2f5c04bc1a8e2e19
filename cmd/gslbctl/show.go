package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
	"unicode/utf8"

	"gslbd/admin"
)

// width is how many columns text uses at most, and tableWidth a table, where they can be broken.
const (
	width      = 100
	tableWidth = 120
)

// showStatus renders a status: first what is wrong, then everything.
func showStatus(server string, st admin.Status) string {
	var b strings.Builder
	ready := "ready"
	if !st.Ready {
		ready = "NOT READY"
	}
	fmt.Fprintf(&b, "gslbd %s at %s: %s, up %s, configuration %d\n", st.Version, server, ready, span(time.Duration(st.UptimeSeconds)*time.Second), st.ConfigEpoch)
	if len(st.Problems) == 0 {
		b.WriteString("Nothing is wrong.\n")
	}
	writeProblems(&b, &st)
	if len(st.Orders) > 0 {
		b.WriteString("\nOrders in force:\n")
		writeOrders(&b, st.Orders, st.Time)
	}
	for _, e := range st.Evacuations {
		fmt.Fprintf(&b, "\nEvacuation %s of zone %s:\n", e.ID, e.Zone)
		writeEvacuation(&b, &e, st.Time)
	}
	for _, svc := range st.Services {
		b.WriteString("\n")
		writeService(&b, &svc, st.Time)
	}
	if len(st.Sites) > 0 {
		b.WriteString("\n")
		showSites(&b, st.Sites)
	}
	if len(st.Zones) > 0 {
		b.WriteString("\n")
		showZones(&b, st.Zones)
	}
	return b.String()
}

// maxAlike is how many problems of one kind are written one by one.
const maxAlike = 5

// writeProblems writes what is wrong, the most serious first. Of a kind that thousands have it writes the first few, so
// that they do not hide the others.
func writeProblems(b *strings.Builder, st *admin.Status) {
	alike := map[string][]admin.Problem{}
	var kinds []string // in the order of the problems
	for _, p := range st.Problems {
		kind := problemKind(&p)
		if alike[kind] == nil {
			kinds = append(kinds, kind)
		}
		alike[kind] = append(alike[kind], p)
	}
	for _, kind := range kinds {
		list := alike[kind]
		shown := len(list)
		if shown > maxAlike+1 {
			shown = maxAlike
		}
		for _, p := range list[:shown] {
			since := ""
			if !p.Since.IsZero() {
				since = " (for " + span(st.Time.Sub(p.Since)) + ")"
			}
			b.WriteString(wrap(fmt.Sprintf("  %-9s ", p.Severity), p.Subject+": "+p.Text+since))
		}
		if shown < len(list) {
			b.WriteString(wrap("            ", fmt.Sprintf("and %d more like these: see --json, or gslbctl status SERVICE", len(list)-shown)))
		}
	}
}

// problemKind returns what problems that differ only in whom they are about, and in names and numbers, have in common.
func problemKind(p *admin.Problem) string {
	what, _, _ := strings.Cut(p.Subject, " ")
	head, _, _ := strings.Cut(p.Text, ": ")
	words := slices.DeleteFunc(strings.Fields(head), func(word string) bool { return strings.ContainsAny(word, `"'0123456789`) })
	return strings.Join(append([]string{p.Severity, what}, words...), " ")
}

// showService renders one service.
func showService(_ string, svc admin.Service) string {
	var b strings.Builder
	writeService(&b, &svc, time.Now())
	return b.String()
}

func writeService(b *strings.Builder, svc *admin.Service, now time.Time) {
	fmt.Fprintf(b, "%s: policy %s, ttl %d\n", svc.Name, svc.Policy, svc.TTL)
	b.WriteString(wrap("  pool ", poolText(&svc.PoolState, now)))
	if len(svc.Aliases) > 0 {
		b.WriteString(wrap("  also ", strings.Join(svc.Aliases, ", ")))
	}
	showMembers(b, svc.Members, now)
}

// poolText says whose members answer, since when, why, and what holds them.
func poolText(p *admin.PoolState, now time.Time) string {
	s := fmt.Sprintf("%s (%s)", p.Pool, p.PoolWhy)
	if !p.PoolSince.IsZero() && !now.IsZero() {
		s += " for " + since(p.PoolSince, now)
	}
	if share := fmt.Sprintf("%d of %d primary servers healthy", p.PoolServersUp, p.PoolServers); p.PoolServers > 0 && !strings.Contains(p.PoolWhy, share) {
		s += ", " + share
	}
	if p.StagedPool != "" {
		s += ", " + p.StagedPool + " for the clients that are moved away"
	}
	if p.Held {
		s += fmt.Sprintf(", HELD by failback %s", p.Failback)
		if !p.HeldUntil.IsZero() && !now.IsZero() {
			s += " for another " + span(p.HeldUntil.Sub(now))
		}
		if !strings.Contains(p.PoolWhy, p.HeldWhy) {
			s += ": " + p.HeldWhy
		}
	}
	return s
}

func showMembers(b *strings.Builder, members []admin.Member, now time.Time) {
	rows := [][]string{{"MEMBER", "SITE", "ADDRESS", "STATE", "FOR", "SERVERS", "WHY"}}
	for _, m := range members {
		servers := "-"
		if m.Servers != nil && m.ServersUp != nil {
			servers = fmt.Sprintf("%d/%d", *m.ServersUp, *m.Servers)
		}
		for i, a := range m.Addresses {
			address := m.CNAME
			if address == "" {
				address = a.Address.String()
			} else {
				address += " " + a.Family
			}
			row := []string{m.Name, m.Site, address, memberState(&m, &a), since(a.Since, now), servers, a.Why}
			if i > 0 {
				row[0], row[1], row[5] = "", "", ""
			}
			rows = append(rows, row)
		}
	}
	table(b, rows)
}

// memberState says what the member is in one family: measured, ordered, or waiting in the other pool.
func memberState(m *admin.Member, a *admin.Address) string {
	s := "DOWN"
	if a.Up {
		s = "up"
	}
	switch {
	case m.Forced != "":
		s += ", forced " + m.Forced
	case !m.InPool:
		s += ", " + m.Role + " waits"
	case m.Weight == 0:
		s += ", weight 0"
	}
	if share := movedShare(m.Moved); share > 0 {
		s += ", " + percent(share) + " moved away"
	}
	return s
}

// movedShare returns the largest share of clients that a staged evacuation moves away.
func movedShare(moved []admin.Moved) float64 {
	share := 0.0
	for _, m := range moved {
		share = max(share, m.Share)
	}
	return share
}

func showSites(b *strings.Builder, sites []admin.Site) {
	rows := [][]string{{"SITE", "ZONE", "REPORT", "AGE", "AGENT", "SESSIONS", "IN", "OUT", "USED", "NOTES"}}
	for _, s := range sites {
		row := []string{s.Name, cmp.Or(s.Zone, "-"), s.Report, "-", cmp.Or(s.Agent, "-"), "-", "-", "-", "-", ""}
		if s.ReportAge != nil {
			row[3] = span(time.Duration(*s.ReportAge * float64(time.Second)))
		}
		if s.Load != nil {
			if s.Load.Sessions != nil {
				row[5] = scaled(float64(*s.Load.Sessions), "")
			}
			if s.Load.BitsPerSecondIn != nil {
				row[6] = scaled(float64(*s.Load.BitsPerSecondIn), "bps")
			}
			if s.Load.BitsPerSecondOut != nil {
				row[7] = scaled(float64(*s.Load.BitsPerSecondOut), "bps")
			}
		}
		if s.Utilisation != nil {
			row[8] = fmt.Sprintf("%.0f %%", *s.Utilisation*100)
		}
		var notes []string
		if s.Overloaded {
			notes = append(notes, "overloaded")
		}
		if s.Shed > 0 {
			notes = append(notes, fmt.Sprintf("sheds %.0f %%", s.Shed*100))
			if s.Heading != nil && s.Utilisation != nil && *s.Heading > *s.Utilisation {
				notes = append(notes, fmt.Sprintf("heading for %.0f %%", *s.Heading*100))
			}
		}
		if s.RTTBlind {
			notes = append(notes, "rtt-blind")
		}
		row[9] = strings.Join(notes, ", ")
		rows = append(rows, row)
	}
	table(b, rows)
}

func showZones(b *strings.Builder, zones []admin.Zone) {
	rows := [][]string{{"DNS ZONE", "SERIAL", "RECORDS", "CLIENT SUBNETS"}}
	for _, z := range zones {
		ecs := "off"
		if z.ECS {
			ecs = "on"
		}
		rows = append(rows, []string{z.Name, fmt.Sprint(z.Serial), fmt.Sprint(z.Records), ecs})
	}
	table(b, rows)
}

// showExplanation renders a decision: whom it is for, the constraints, a line for each metric, the answer.
func showExplanation(_ string, e admin.Explanation) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s", e.Name, e.Type)
	if e.Service != e.Name {
		fmt.Fprintf(&b, ", service %s", e.Service)
	}
	fmt.Fprintf(&b, ", policy %s\n", e.Policy)
	client := "ldns " + e.Client.LDNS.String()
	if e.Client.ECS.IsValid() {
		client += ", ecs " + e.Client.ECS.String()
		client += ", decided by " + e.Client.Used
		if e.Client.Why != "" {
			client += ", because " + e.Client.Why
		}
	}
	b.WriteString(wrap("client   ", client))
	if e.Pool != "" {
		b.WriteString(wrap("pool     ", poolText(&e.PoolState, e.Time)))
	}

	b.WriteString("\n")
	steps := append(e.Trace.Constraints[:len(e.Trace.Constraints):len(e.Trace.Constraints)], e.Trace.Steps...)
	var column [2]int
	for _, s := range steps {
		column[0] = max(column[0], len(s.Metric))
		column[1] = max(column[1], len(s.Verdict))
	}
	for i, s := range steps {
		if i == len(e.Trace.Constraints) {
			b.WriteString("\n")
		}
		b.WriteString(wrap(fmt.Sprintf("%-*s  %-*s  ", column[0], s.Metric, column[1], s.Verdict), s.Text()))
	}
	if e.Trace.OnAllDown != "" {
		b.WriteString(wrap("\nall down: ", e.Trace.OnAllDown))
	}

	b.WriteString("\n")
	ttl := "as the zone says"
	if e.Answer.TTL != nil {
		ttl = fmt.Sprint(*e.Answer.TTL)
	}
	facts := fmt.Sprintf("ttl %s, settled by %s", ttl, e.Answer.Reason)
	if e.Answer.Scope != nil {
		facts += fmt.Sprintf(", ecs scope /%d", *e.Answer.Scope)
	}
	var records []string
	for _, r := range e.Answer.Records {
		if r.Member != "" {
			r.Data += " (" + r.Member + ")"
		}
		records = append(records, r.Data)
	}
	what := strings.Join(records, ", ")
	if e.Answer.Kind != "answer" {
		what = strings.TrimSpace(strings.ToUpper(e.Answer.Kind) + " " + what)
	}
	b.WriteString(wrap("answer   ", what+"; "+facts))
	return b.String()
}

func showRTT(_ string, v admin.RTTs) string {
	if len(v.Sites) == 0 {
		return fmt.Sprintf("No site has measured %s (network %s).\n", v.Resolver, v.Network)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s, network %s\n", v.Resolver, v.Network)
	rows := [][]string{{"SITE", "RTT", "METHOD", "AGE", "JITTER", "LOST", "PATH CHANGE"}}
	for _, s := range v.Sites {
		method, lost, path := s.Method, "-", "-"
		if s.Connections > 0 {
			method += fmt.Sprintf(", %d connections", s.Connections)
		}
		if s.Probes > 0 {
			lost = fmt.Sprintf("%d of %d", s.Lost, s.Probes)
		}
		if c := s.PathChange; c != nil {
			path = fmt.Sprintf("was %.1f ms until %s", c.BeforeMS, c.Since.Format(time.RFC3339))
		}
		rows = append(rows, []string{
			s.Site, fmt.Sprintf("%.1f ms", s.RTTMS), method, span(time.Duration(s.Age * float64(time.Second))),
			fmt.Sprintf("%.1f ms", s.Jitter), lost, path,
		})
	}
	table(&b, rows)
	return b.String()
}

// table writes rows in columns, indented. The last column is broken at blanks into lines of at most tableWidth columns.
func table(b *strings.Builder, rows [][]string) {
	var t strings.Builder
	w := tabwriter.NewWriter(&t, 0, 0, 0, ' ', 0)
	for _, row := range rows {
		for _, cell := range row[:len(row)-1] {
			fmt.Fprint(w, "  ", strings.Join(strings.Fields(cell), " "), "\t") // what servers say must not begin a line
		}
		fmt.Fprintln(w)
	}
	_ = w.Flush() // a Builder does not fail
	i := 0
	for line := range strings.Lines(t.String()) {
		head := strings.TrimSuffix(line, "\n") + "  "
		last := rows[i][len(rows[i])-1]
		// Beside wide columns it still gets lines that are worth reading.
		b.WriteString(wrapAt(max(tableWidth, utf8.RuneCountInString(head)+40), head, last))
		i++
	}
}

// wrap breaks text at blanks into lines of at most width columns, under head.
func wrap(head, text string) string { return wrapAt(width, head, text) }

func wrapAt(width int, head, text string) string {
	indent := strings.Repeat(" ", utf8.RuneCountInString(strings.TrimLeft(head, "\n")))
	var b strings.Builder
	b.WriteString(head)
	column := len(indent)
	for i, word := range strings.Fields(text) {
		n := utf8.RuneCountInString(word)
		switch {
		case i == 0:
		case column+1+n > width:
			b.WriteString("\n" + indent)
			column = len(indent)
		default:
			b.WriteByte(' ')
			column++
		}
		b.WriteString(word)
		column += n
	}
	return strings.TrimRight(b.String(), " ") + "\n"
}

// since writes how long ago t was, "-" if never.
func since(t, now time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return span(now.Sub(t))
}

// span writes a duration in its two largest units, since nobody needs the seconds of a week.
func span(d time.Duration) string {
	d = max(0, d).Round(time.Second)
	s := int64(d / time.Second)
	switch {
	case s < 60:
		return fmt.Sprintf("%ds", s)
	case s < 3600:
		return fmt.Sprintf("%dm%ds", s/60, s%60)
	case s < 86400:
		return fmt.Sprintf("%dh%dm", s/3600, s%3600/60)
	}
	return fmt.Sprintf("%dd%dh", s/86400, s%86400/3600)
}

// scaled writes a number with a decimal prefix, as the configuration does: 900Mbps.
func scaled(v float64, unit string) string {
	for _, prefix := range []string{"", "k", "M", "G"} {
		if v < 1000 {
			return fmt.Sprintf("%.4g%s%s", v, prefix, unit)
		}
		v /= 1000
	}
	return fmt.Sprintf("%.4gT%s", v, unit)
}
