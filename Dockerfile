# One image for migrate, worker, api and scheduler: `docker run tallystick:0.1.0 worker`.
FROM python:3.11-slim

RUN useradd --system --create-home --home-dir /var/lib/tallystick tallystick
WORKDIR /app

# The dependencies change less often than the code, so they are a layer of their own.
COPY pyproject.toml constraints.txt README.md LICENSE ./
# Empty packages in place of ours: pip refuses to install what names a package that is not there.
RUN for package in tallystick tallystick/commands api ingest billing billing/exports quotas ledger migrations; do \
        mkdir -p "$package" && touch "$package/__init__.py" || exit 1; \
    done \
    && pip install --no-cache-dir --constraint constraints.txt --editable '.[warehouse]'
COPY tallystick ./tallystick
COPY api ./api
COPY ingest ./ingest
COPY billing ./billing
COPY quotas ./quotas
COPY ledger ./ledger
COPY migrations ./migrations
COPY dbt ./dbt
COPY data ./data

USER tallystick
ENV PYTHONUNBUFFERED=1 TALLYSTICK_HOME=/var/lib/tallystick
ENTRYPOINT ["tallystick"]
CMD ["--help"]
