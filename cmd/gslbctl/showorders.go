package main

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"gslbd/admin"
	"gslbd/control"
	"gslbd/policy"
)

// maxRows is how many resources or warnings are written: what is beyond stands in the JSON.
const maxRows = 20

func showOrders(server string, l admin.OrderList) string {
	if len(l.Orders) == 0 {
		return fmt.Sprintf("%s: no order is in force.\n", server)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s in force\n", server, count(len(l.Orders), "order"))
	writeOrders(&b, l.Orders, l.Time)
	return b.String()
}

// writeOrders writes a paragraph for each order: a table would have to cut the reason, or the id that clear wants.
func writeOrders(b *strings.Builder, orders []control.OrderState, now time.Time) {
	for _, o := range orders {
		facts := []string{targetText(o.Target) + ": " + count(o.Members, "member"), "ordered " + since(o.Created, now) + " ago"}
		if !o.Expires.IsZero() {
			facts = append(facts, "ends in "+span(o.Expires.Sub(now)))
		}
		switch o.Shared {
		case "etcd":
			facts = append(facts, "shared by etcd")
		case "on this gslbd only":
			facts = append(facts, "ON THIS GSLBD ONLY so far")
		}
		b.WriteString(wrap(fmt.Sprintf("  %-5s  ", o.Action), strings.Join(facts, ", ")))
		b.WriteString(wrap("         ", o.Author+": "+o.Reason))
		b.WriteString("         " + o.ID + "\n")
	}
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

func showDrains(server string, l admin.DrainList) string {
	if len(l.Drains) == 0 {
		return fmt.Sprintf("%s: no member is forced to drain, down or evacuated.\n", server)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s kept from clients by orders\n", server, count(len(l.Drains), "member"))
	rows := [][]string{{"SERVICE", "MEMBER", "SITE", "FORCED", "FOR", "CACHED ANSWERS", "SITE'S SESSIONS", "WHY"}}
	for _, d := range l.Drains {
		row := []string{d.Service, d.Member, d.Site, d.Forced, since(d.Since, l.Time), "have run out", "-", d.Why}
		if d.SecondsLeft > 0 {
			row[5] = "run out in " + span(seconds(math.Ceil(d.SecondsLeft)))
		}
		if d.SiteSessions != nil {
			row[6] = scaled(float64(*d.SiteSessions), "")
		}
		rows = append(rows, row)
	}
	table(&b, rows)
	return b.String()
}

func showEvacuations(server string, l admin.EvacuationList) string {
	if len(l.Evacuations) == 0 {
		return fmt.Sprintf("%s: nothing is evacuated, and the ledger is empty.\n", server)
	}
	var b strings.Builder
	for i, e := range l.Evacuations {
		if i > 0 {
			b.WriteString("\n")
		}
		fmt.Fprintf(&b, "%s: evacuation %s of zone %s\n", server, e.ID, e.Zone)
		writeEvacuation(&b, &e, l.Time)
		if len(e.Ledger) == 0 {
			b.WriteString("  The ledger has nothing of it.\n")
			continue
		}
		fmt.Fprintf(&b, "  Ledger, %s:\n", count(len(e.Ledger), "resource"))
		rows := [][]string{{"TYPE", "RESOURCE", "FOR", "TAKEN"}}
		for _, t := range e.Ledger {
			rows = append(rows, []string{t.Type, t.Resource, since(t.Created, l.Time), strings.Join(t.Removed, ", ")})
		}
		table(&b, rows)
	}
	return b.String()
}

// writeEvacuation writes who ordered an evacuation and how far it is.
func writeEvacuation(b *strings.Builder, e *control.EvacuationState, now time.Time) {
	b.WriteString(wrap("  ", fmt.Sprintf("%s ago by %s: %s", since(e.Created, now), e.Author, e.Reason)))
	facts := []string{fmt.Sprintf("%.4g %% of clients are moved away", e.Share*100)}
	if !e.Next.IsZero() {
		facts = append(facts, "the next step comes in "+span(e.Next.Sub(now)))
	}
	if !e.Expires.IsZero() {
		facts = append(facts, "it is restored by itself in "+span(e.Expires.Sub(now)))
	}
	if e.Shared == "on this gslbd only" {
		facts = append(facts, "it is ON THIS GSLBD ONLY so far")
	}
	b.WriteString(wrap("  ", strings.Join(facts, "; ")))
	if len(e.Parts) > 0 {
		rows := [][]string{{"TYPE", "STATE", "WHY"}}
		for _, p := range e.Parts {
			state := p.State
			if state == "failed" {
				state = "FAILED"
			}
			rows = append(rows, []string{p.Type, state, cmp.Or(p.Why, "-")})
		}
		table(b, rows)
	}
}

// showPreview renders what an evacuation would do: what it takes, what becomes of sites and services, and last, where
// the eye stays, what speaks against it.
func showPreview(server string, p admin.Preview) string {
	var b strings.Builder
	switch n := len(p.Plan.Resources); {
	case p.Plan.Already != "":
		fmt.Fprintf(&b, "%s: zone %s is evacuated already, by %s\n", server, p.Plan.Zone, p.Plan.Already)
	case n == 0:
		fmt.Fprintf(&b, "%s: the evacuation of zone %s takes nothing\n", server, p.Plan.Zone)
	default:
		fmt.Fprintf(&b, "%s: the evacuation of zone %s takes %s\n", server, p.Plan.Zone, count(n, "resource"))
		rows := [][]string{{"TYPE", "RESOURCE", "ZONE", "TAKEN"}}
		for _, r := range p.Plan.Resources[:min(n, maxRows)] {
			rows = append(rows, []string{r.Type, r.Name, r.Zone, strings.Join(r.Removed, ", ")})
		}
		table(&b, rows)
		if n > maxRows {
			fmt.Fprintf(&b, "  and %d more\n", n-maxRows)
		}
	}
	writeForecast(&b, &p.Forecast)
	warnings := append(append([]string{}, p.Plan.Warnings...), p.Forecast.Warnings...)
	if len(warnings)+len(p.Plan.Refusals) > 0 {
		b.WriteString("\n")
	}
	writeList(&b, "  warning: ", warnings)
	writeList(&b, "  REFUSED without --force: ", p.Plan.Refusals)
	return b.String()
}

// writeList writes each text under head; of very many, one a service say, only the first.
func writeList(b *strings.Builder, head string, texts []string) {
	for _, text := range texts[:min(len(texts), maxRows)] {
		b.WriteString(wrap(head, text))
	}
	if n := len(texts) - maxRows; n > 0 {
		fmt.Fprintf(b, "%s and %d more: see --json\n", strings.TrimRight(head, " "), n)
	}
}

func writeForecast(b *strings.Builder, f *policy.Forecast) {
	rows := [][]string{{"SITE", "ZONE", "CLIENTS", "SESSIONS", "LOAD", "NOTES"}}
	same := 0
	for _, s := range f.Sites {
		row := []string{s.Name, cmp.Or(s.Zone, "-"), change(percent(s.Clients.Before), percent(s.Clients.After)), "-", "-", ""}
		if s.Before != nil && s.After != nil && s.Before.Sessions != nil && s.After.Sessions != nil {
			row[3] = change(scaled(float64(*s.Before.Sessions), ""), scaled(float64(*s.After.Sessions), ""))
		}
		if s.UtilBefore != nil && s.UtilAfter != nil {
			row[4] = change(percent(*s.UtilBefore), percent(*s.UtilAfter))
		}
		if s.Over {
			row[5] = "OVER ITS THRESHOLD: " + s.OverWhy
		}
		if !s.Over && s.Clients.Before == s.Clients.After {
			same++
			continue
		}
		rows = append(rows, row)
	}
	if len(rows) > 1 {
		b.WriteString("\nForecast for sites, from recent clients:\n")
		table(b, rows)
	}
	if slices.ContainsFunc(f.Services, func(s policy.ServiceForecast) bool { return s.Shares != nil }) {
		others(b, same, "site") // where no clients are known, nothing can be said of any site
	}

	rows = [][]string{{"SERVICE", "RECENT CLIENTS", "OTHER ANSWER", "NO ANSWER", "POOL"}}
	same = 0
	for _, s := range f.Services {
		row := []string{s.Name, fmt.Sprint(s.Clients), "-", "-", change(s.PoolBefore, s.PoolAfter)}
		if s.Shares == nil {
			row[2] = "unknown: " + s.Unknown
			row[3] = ""
		} else {
			row[2], row[3] = percent(s.Shares.Changed), percent(s.Shares.NoAnswer.After)
			if s.Shares.Changed == 0 && s.Shares.NoAnswer.After == 0 && s.PoolBefore == s.PoolAfter {
				same++
				continue
			}
		}
		rows = append(rows, row)
	}
	if len(rows) > 1 {
		b.WriteString("\nForecast for services:\n")
		table(b, rows)
	}
	others(b, same, "service")

	rows = [][]string{{"SERVICE", "FROM", "TO", "SHARE", "BY"}}
	moves := 0
	for _, s := range f.Services {
		if s.Shares == nil {
			continue
		}
		for _, m := range s.Shares.Moves {
			if moves++; moves <= maxRows {
				rows = append(rows, []string{s.Name, m.From, m.To, percent(m.Share), m.Metric})
			}
		}
	}
	if moves > 0 {
		b.WriteString("\nWho moves:\n")
		table(b, rows)
		if moves > maxRows {
			fmt.Fprintf(b, "  and %d more: see --json\n", moves-maxRows)
		}
	}
}

func others(b *strings.Builder, n int, what string) {
	if n > 0 {
		fmt.Fprintf(b, "  Nothing changes for %s.\n", count(n, what))
	}
}

// change writes what something is and what it would become.
func change(before, after string) string {
	if before == after {
		return before
	}
	return before + " -> " + after
}

func percent(share float64) string { return fmt.Sprintf("%.0f %%", share*100) }
