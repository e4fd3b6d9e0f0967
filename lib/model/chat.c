/* Chat templates: messages to a prompt's text, with the template that came with the model. */
#include <string.h>

#include "model/jinja.h"
#include "model/tokenizer_impl.h"

static bool set(json_t *vars, const char *name, json_t *v)
{
	return !json_object_set_new(vars, name, v); /* gives v up also where it fails */
}

/* Hugging Face's variables; the caller's go before them. */
static json_t *variables(const struct tokenizer *t, const json_t *messages, bool add_generation_prompt,
	const json_t *more)
{
	json_t *vars = json_object(), *v;
	const char *name;
	bool ok = vars && set(vars, "messages", json_incref((json_t *)(uintptr_t)messages)) &&
		set(vars, "add_generation_prompt", json_boolean(add_generation_prompt)) &&
		set(vars, "tools", json_null()) &&
		set(vars, "documents", json_null());

	for (size_t i = 0; ok && i < ARRAY_LEN(t->special); i++)
		if (t->special[i])
			ok = set(vars, tokenizer_special_names[i], json_string(t->special[i]));
	json_object_foreach((json_t *)(uintptr_t)more, name, v) {
		if (!ok)
			break;
		ok = set(vars, name, json_incref(v));
	}
	if (ok)
		return vars;
	json_decref(vars);
	return NULL;
}

int chat_render(const struct tokenizer *t, const void *messages, bool add_generation_prompt, const void *more,
	struct buf *out, struct ds_err *err)
{
	json_t *vars;
	int rc;

	if (!t->chat_template)
		return err_set(err, DS_CONFIG, "model '%s' has no chat template", t->name);
	if (!json_is_array((const json_t *)messages))
		return err_set(err, DS_DATA, "messages are not an array");
	vars = variables(t, messages, add_generation_prompt, more);
	if (!vars)
		return err_nomem(err, 1024, "the chat template's variables");
	rc = jinja_render(t->chat_template, t->chat_template_len, vars, out, err);
	json_decref(vars);
	return rc;
}
