{# Every combination of columns is a row there; `unless` excuses rows, such as those of a model that nobody knows. #}
{% test refers_to(model, columns, to, unless="false") %}
select distinct {{ columns | join(", ") }}
from {{ model }} as here
where
    not ({{ unless }})
    and not exists (
        select
        from {{ to }} as there
        where
            {%- for column in columns %}
            there.{{ column }} = here.{{ column }}{{ " and" if not loop.last }}
            {%- endfor %}
    )
{% endtest %}
