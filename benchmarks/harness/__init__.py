"""What all benches share: timing, rows, figures, and the comparison of rows."""
