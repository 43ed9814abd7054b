"""Where backups are kept: files that are never changed, and manifests that say which of them count."""
