//go:build race

package main

const raced = true // what costs ten times as much
