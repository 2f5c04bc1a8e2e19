// Package admin is the operator's view of gslbd over HTTP: what is up and why (/v1/status), how a query would be decided
// (/v1/explain), telemetry for Prometheus (/metrics), readiness (/readyz), and reloading. gslbctl is its client.
//
// It refuses whoever it does not know: off loopback everything but /healthz, /readyz and /metrics needs the token. It
// refuses to let a web page act through a loopback listener: without a token the request must name this machine by
// address or as localhost, and what changes something must be JSON and must not come from a foreign origin. It has no
// second implementation of anything: explain runs the very chain that serves, with a trace.
//
// Concurrency: a Server's methods may be called at any time from any goroutine. A request reads one snapshot, so that its
// answer is of one moment. Reloads take turns.
//
// Failure: serving DNS does not depend on this package. A request that cannot be answered gets a status and a sentence
// that says why, as JSON; bodies are bounded here, connections and times by whoever listens for the Handler.
package admin
