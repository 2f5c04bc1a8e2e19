// Package policy narrows candidates to an answer.
package policy
