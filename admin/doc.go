// Package admin is the operator's view of gslbd over HTTP: the dashboard (/), what is up and why (/v1/status), what happened
// (/v1/events), how a query would be decided (/v1/explain), telemetry for Prometheus (/metrics), readiness (/readyz),
// reloading, and the orders that operators give (/v1/orders, /v1/evacuations, /v1/restorations, /v1/failback), which control
// keeps. gslbctl is its client.
//
// It refuses whoever it does not know: off loopback everything but /healthz, /readyz, /metrics and the files of the
// dashboard, which tell nothing, needs the token or a client certificate. It refuses to let a web page act through a
// loopback listener: without a token the request must name this machine by address or as localhost, and what changes
// something must be JSON and must not come from a foreign origin. A body with a field that is not known is refused whole, since a misspelt order must not be taken for a smaller
// one. Every order, given or refused, is one line of the log, control's or here. It has no second implementation of anything: explain runs
// the very chain that serves, with a trace, and so does the forecast of an evacuation.
//
// Concurrency: a Server's methods may be called at any time from any goroutine. A request reads one snapshot, so that its
// answer is of one moment. Reloads take turns.
//
// Failure: serving DNS does not depend on this package. A request that cannot be answered gets a status and a sentence
// that says why, as JSON; bodies are bounded here, connections and times by whoever listens for the Handler.
package admin
