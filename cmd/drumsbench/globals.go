package main

import (
	"io"
	"log/slog"
)

// globals are what every command gets: the flags that all of them have, where
// its words go, and a logger.
type globals struct {
	// State is the absolute path of the state directory: images, caches, tools, runs.
	State string `env:"DRUMSBENCH_STATE" default:"/var/lib/drumsbench" type:"path" placeholder:"DIR" help:"Directory of images, caches, tools and runs (default ${default}, or $$${env})."`
	// Output is "plain", "json" or, of commands that have it, another format; "table" is another word for plain.
	Output string `short:"o" enum:"plain,table,json,md,csv" default:"plain" placeholder:"FORMAT" help:"What is printed: plain for people, json for programs (default ${default}); some commands have md and csv too."`
	// Verbose lets the logger say everything.
	Verbose bool `short:"v" help:"Log each thing that is done, on standard error."`

	// Stdout takes the result and nothing else; Stderr takes messages, progress and the log.
	Stdout io.Writer `kong:"-"`
	Stderr io.Writer `kong:"-"`
	// Log writes to Stderr; warnings and worse, everything with --verbose.
	Log *slog.Logger `kong:"-"`
}

// json says whether the result is for a program.
func (g *globals) json() bool { return g.Output == "json" }

func newLogger(g *globals) *slog.Logger {
	options := &slog.HandlerOptions{Level: slog.LevelWarn}
	if g.Verbose {
		options.Level = slog.LevelDebug
	}
	if g.json() {
		return slog.New(slog.NewJSONHandler(g.Stderr, options))
	}
	return slog.New(slog.NewTextHandler(g.Stderr, options))
}
