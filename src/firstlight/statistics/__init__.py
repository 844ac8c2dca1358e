"""From samples to statements: intervals, steady states, break-even. No process, no clock."""
