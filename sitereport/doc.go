// Package sitereport is how a site tells gslbd what it measures: the report and its JSON (Report, Answer), the receiver
// that gslbd runs (Receiver), and the agent that sends reports from the site.
//
// It refuses a report that it cannot read whole: a number out of range, a field given twice or of the wrong type, more
// entries than the limits, anything after the report. It never clamps a number and never applies half a report. It
// refuses a report whose sender does not prove to be of the site: with one of the site's tokens, with a client certificate
// that names the site, or, where neither is configured, by coming from a loopback address.
//
// Concurrency: Decode and the types are plain data. A Receiver's methods may be called at any time from any goroutine;
// reports of one site are applied one after the other, those of different sites do not wait for each other. An Agent
// serves each gslbd by a goroutine of its own; a Reader is for one caller at a time. Whoever runs a Receiver listens for
// its Handler, and bounds connections.
//
// Failure: whatever a site sends changes only that site. A refused report leaves what the site reported before in
// force, and its age running. Memory is bounded by the limits of a report and by MaxAgents a site. What an agent cannot
// read is reported as unknown or left out, never as 0.
package sitereport
