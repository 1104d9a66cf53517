package compile

import "github.com/drumsbench/drumsbench/schemas/bench"

func manifestRules(m bench.Manifest) Problems { return nil }
func recipeRules(r bench.Recipe) Problems     { return nil }
