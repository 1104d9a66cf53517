//go:build race && linux && !elsewhere

package main

func init() { underRace = true }
