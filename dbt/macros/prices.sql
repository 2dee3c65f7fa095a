{# The price of one unit, exactly: `per` is a power of ten up to 10^9, and a product with its inverse loses no digit. #}
{% macro unit_price(price, per) -%}
    {{ price }} * case {{ per }}
        {%- for places in range(10) %}
        when {{ 10 ** places }} then {{ "0." ~ "0" * (places - 1) ~ "1" if places else "1" }}
        {%- endfor %}
    end
{%- endmacro %}

{# The long-context bands of a part of a card, as the selectors of a rate set write them: `>200000`. #}
{% macro bands_of(part) -%}
    array(
        select (b ->> 'operator') || (b ->> 'input_tokens')
        from jsonb_array_elements(coalesce({{ part }} -> 'bands', '[]')) as b
        order by 1
    )
{%- endmacro %}
