// Package state holds what is measured now.
package state
