"""N-grams as values: words, tries, discounts and smoothings."""
