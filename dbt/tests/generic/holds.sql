{# An identity that is true of every row; unknown counts as broken. #}
{% test holds(model, expression) %}
select *
from {{ model }}
where ({{ expression }}) is not true
{% endtest %}
