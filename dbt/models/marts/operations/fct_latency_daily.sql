{%- set columns = [
    "tenant_id", "local_date", "feature", "provider", "model", "route", "lane", "status", "served_by", "metric", "bucket",
] -%}
{{ config(one_row_per(columns)) }}

with changed as (
    {{ changed_requests() }}
),

measured as (
    select
        c.tenant_id,
        c.local_date,
        c.feature,
        c.provider,
        c.model,
        c.route,
        c.lane,
        c.status,
        c.served_by,
        m.metric,
        coalesce({{ latency_bucket('m.microseconds') }}, -1) as bucket,
        c.sign * c.request_count as request_count
    from changed as c
    cross join lateral (
        values
            ('end_to_end', c.latency_ms * 1000),
            ('first_token', c.ttft_ms * 1000),
            -- The first token is the prompt's work; what is left is the time between the tokens after it.
            (
                'per_output_token',
                case
                    when c.output_tokens > 1 and coalesce(c.decode_ms, c.latency_ms - c.ttft_ms) >= 0
                        then coalesce(c.decode_ms, c.latency_ms - c.ttft_ms) * 1000 / (c.output_tokens - 1)
                end
            )
    ) as m (metric, microseconds)
),

folded as (
    {{ folded('measured', columns, ["request_count"]) }}
),

moved as (
    select *
    from folded
    where request_count <> 0
)

select * from moved
