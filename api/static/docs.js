// Renders the OpenAPI document. All text goes in as text, so that nothing in the document can become markup.
"use strict";

function make(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) element.setAttribute(name, value);
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

// `code` and **strong** in descriptions.
function prose(text) {
  return String(text || "").split(/\n\s*\n/).filter(Boolean).map((paragraph) => {
    const parts = paragraph.split(/(`[^`]+`|\*\*[^*]+\*\*)/).map((part) => {
      if (part.startsWith("`")) return make("code", {}, part.slice(1, -1));
      if (part.startsWith("**")) return make("strong", {}, part.slice(2, -2));
      return part;
    });
    return make("p", {}, ...parts);
  });
}

function nameOf(reference) {
  return reference.split("/").pop();
}

function link(name) {
  return make("a", { href: `#schema-${name}` }, name);
}

// What a schema is, in a few words.
function typeOf(schema) {
  if (!schema || Object.keys(schema).length === 0) return ["anything"];
  if (schema.$ref) return [link(nameOf(schema.$ref))];
  const choices = schema.anyOf || schema.oneOf;
  if (choices) return choices.flatMap((choice, at) => (at ? [" or ", ...typeOf(choice)] : typeOf(choice)));
  if (schema.const !== undefined) return [make("code", {}, JSON.stringify(schema.const))];
  if (schema.enum) {
    return schema.enum.flatMap((value, at) => [at ? ", " : "", make("code", {}, value === null ? "null" : String(value))]);
  }
  if (schema.type === "array") return ["array of ", ...typeOf(schema.items)];
  if (schema.type === "object" && schema.additionalProperties instanceof Object && Object.keys(schema.additionalProperties).length) {
    return ["object of ", ...typeOf(schema.additionalProperties)];
  }
  const limits = [];
  if (schema.format) limits.push(schema.format);
  if (schema.minLength) limits.push(`${schema.minLength} or more characters`);
  if (schema.maxLength) limits.push(`up to ${schema.maxLength} characters`);
  if (schema.minimum !== undefined) limits.push(`from ${schema.minimum}`);
  if (schema.maximum !== undefined) limits.push(`to ${schema.maximum}`);
  return [String(schema.type || "anything") + (limits.length ? ` (${limits.join(", ")})` : "")];
}

function row(name, isRequired, schema, description) {
  const first = make("td", {}, make("code", {}, name), isRequired ? make("span", { class: "required" }, " required") : null);
  return make("tr", {}, first, make("td", {}, ...typeOf(schema)), make("td", {}, ...prose(description)));
}

function table(first, rows) {
  const head = make("tr", {}, make("th", {}, first), make("th", {}, "Type"), make("th", {}, "Meaning"));
  return make("table", {}, make("thead", {}, head), make("tbody", {}, ...rows));
}

function example(value, title) {
  const text = typeof value === "string" ? value : JSON.stringify(value, null, 2);
  return make("details", {}, make("summary", {}, title), make("pre", {}, make("code", {}, text)));
}

function contents(content) {
  return Object.entries(content || {}).flatMap(([mediaType, media]) => {
    const shown = [make("p", {}, make("code", {}, mediaType), " ", ...typeOf(media.schema))];
    if (media.example !== undefined) shown.push(example(media.example, "Example"));
    for (const [name, one] of Object.entries(media.examples || {})) shown.push(example(one.value, `Example: ${name}`));
    return shown;
  });
}

function needed(security) {
  const scopes = (security || []).flatMap((one) => Object.values(one).flat());
  if (!security) return "Needs no key.";
  return `Needs a key (Authorization: Bearer and the token) with the scope ${scopes.join(", ")}.`;
}

function operation(path, method, told) {
  const section = make("section", { class: "operation", id: told.operationId });
  section.append(
    make("h3", {}, make("span", { class: `method ${method}` }, method.toUpperCase()), make("code", {}, path)),
    make("p", {}, make("strong", {}, told.summary || "")),
    ...prose(told.description),
    make("p", {}, needed(told.security)),
  );
  if (told.parameters) {
    section.append(
      make("h4", {}, "Parameters"),
      table("Name", told.parameters.map((one) => row(one.name, one.required, one.schema, `In the ${one.in}. ${one.description || ""}`))),
    );
  }
  if (told.requestBody) section.append(make("h4", {}, "Body"), ...contents(told.requestBody.content));
  section.append(make("h4", {}, "Answers"));
  const rows = Object.entries(told.responses).map(([status, answer]) =>
    make("tr", {},
      make("td", {}, make("span", { class: `status ${status < "4" ? "good" : "bad"}` }, status)),
      make("td", {}, ...prose((answer.description || "").replaceAll("; `", "\n\n`")), ...contents(answer.content)),
    ));
  section.append(make("table", {}, make("tbody", {}, ...rows)));
  return section;
}

function schemaSection(name, schema) {
  const section = make("section", { class: "schema", id: `schema-${name}` }, make("h3", {}, name), ...prose(schema.description));
  const required = new Set(schema.required || []);
  if (schema.properties) {
    section.append(table("Field", Object.entries(schema.properties).map(([field, one]) => row(field, required.has(field), one, one.description))));
  } else {
    section.append(make("p", {}, ...typeOf(schema)));
  }
  return section;
}

function render(told) {
  document.title = `${told.info.title} API`;
  document.getElementById("title").textContent = `${told.info.title} API`;
  document.getElementById("version").textContent = `Version ${told.info.version}`;
  const page = [...prose(told.info.description)];
  const index = [];
  const operations = Object.entries(told.paths).flatMap(([path, methods]) =>
    Object.entries(methods).map(([method, one]) => ({ path, method, one })));
  for (const tag of told.tags || []) {
    const listed = operations.filter(({ one }) => (one.tags || []).includes(tag.name));
    page.push(make("h2", { id: `tag-${tag.name}` }, tag.name[0].toUpperCase() + tag.name.slice(1)), ...prose(tag.description));
    page.push(...listed.map(({ path, method, one }) => operation(path, method, one)));
    index.push(make("strong", {}, tag.name), make("ul", {}, ...listed.map(({ path, method, one }) =>
      make("li", {}, make("a", { href: `#${one.operationId}` }, `${method.toUpperCase()} ${path}`)))));
  }
  const schemas = Object.entries(told.components.schemas);
  page.push(make("h2", { id: "schemas" }, "Schemas"), ...schemas.map(([name, one]) => schemaSection(name, one)));
  index.push(make("strong", {}, "schemas"), make("ul", {}, ...schemas.map(([name]) => make("li", {}, link(name)))));
  document.getElementById("page").replaceChildren(...page);
  document.getElementById("contents").replaceChildren(...index);
  if (location.hash) document.getElementById(location.hash.slice(1))?.scrollIntoView();
}

fetch("openapi.json")
  .then((answer) => (answer.ok ? answer.json() : Promise.reject(new Error(`openapi.json: ${answer.status}`))))
  .then(render)
  .catch((error) => document.getElementById("page").replaceChildren(make("p", { class: "error" }, String(error))));
