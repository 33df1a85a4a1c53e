"""Documents of a crawl: their perplexities, limits, output and figures."""
