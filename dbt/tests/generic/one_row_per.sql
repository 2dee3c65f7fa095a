{# The grain: no two rows agree on all of these columns, and none of them is ever null. #}
{% test one_row_per(model, columns) %}
select
    {{ columns | join(", ") }},
    count(*) as row_count
from {{ model }}
group by {{ columns | join(", ") }}
having count(*) > 1{% for column in columns %} or {{ column }} is null{% endfor %}
{% endtest %}
