"""Statistics of samples: intervals, steady states, break-even, effects. No process, no clock."""
