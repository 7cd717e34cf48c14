"""Programs that strain scrun: tools/bench, tools/chaos, tools/fuzz and tools/mutate run them."""
