"""Topic models in use: tables, pages, distances, and the topics of new documents."""
