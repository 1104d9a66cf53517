package engine

import (
	"context"

	"github.com/drumsbench/drumsbench/schemas/bench"
)

// PageCache drops files from the host's page cache. Safe for concurrent use.
type PageCache interface {
	// Drop takes the pages of all regular files at and below the paths out of memory,
	// and reads back which are left: those that some process has mapped, or that are
	// on no disk. It follows no link, and changes neither a file nor a setting.
	Drop(ctx context.Context, paths []string) (bench.CacheDrop, error)
}

// Cached is an optional interface of a Root: what a start reads of the image goes
// through the page cache of the host.
type Cached interface {
	// CachePaths are the files, and the folders with files, that a start reads,
	// checkpoints apart, in the order in which they have to be dropped. ErrRefused where they cannot be told.
	CachePaths() ([]string, error)
}
