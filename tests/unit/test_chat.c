/* Chat templates: every rendering and its ids; templates of the shapes that other models carry. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "model/tokenizer.h"
#include "tests/unit/tap.h"

#define TINY "examples/models/tiny-r1"

static struct tokenizer *open_or_bail(const char *dir)
{
	struct ds_err err = { 0 };
	struct tokenizer *t;

	if (tokenizer_open(&t, dir, &err))
		tap_bail("%s", err.text);
	return t;
}

static bool same_ids(const struct ids *ids, const json_t *want)
{
	if (ids->n != json_array_size(want))
		return false;
	for (size_t i = 0; i < ids->n; i++)
		if (ids->v[i] != (uint32_t)json_integer_value(json_array_get(want, i)))
			return false;
	return true;
}

/* DeepSeek-R1's folder: its configuration, and V3's tokenizer.json with the two placeholders that became <think> and
 * </think>. */
static void make_r1(char dir[1000], const char *v3, const char *r1)
{
	char command[8000];

	snprintf(dir, 1000, "%s/tests/r1-tokenizer", tap_build());
	snprintf(command, sizeof(command),
		"mkdir -p '%s' && cp '%s/tokenizer_config.json' '%s' && { sed"
		" -e '/no▁798｜/,/\"special\"/{s/<｜place▁holder▁no▁798｜>/<think>/;s/\"normalized\": "
			"false/\"normalized\": true/;s/\"special\": true/\"special\": false/;}'"
		" -e '/no▁799｜/,/\"special\"/{s/<｜place▁holder▁no▁799｜>/<\\/think>/;s/\"normalized\": "
			"false/\"normalized\": true/;s/\"special\": true/\"special\": false/;}'"
		" '%s/tokenizer.json'; echo; } > '%s/tokenizer.json'", dir, r1, dir, v3, dir);
	fflush(stdout);
	if (system(command) != 0)
		tap_bail("cannot make the tokenizer of DeepSeek-R1");
}

static void check_chat_line(struct tokenizer *t, const json_t *c, size_t line)
{
	struct ds_err err = { 0 };
	struct buf text = { 0 };
	struct ids ids = { 0 };
	const json_t *want = json_object_get(c, "text");
	int rc = chat_render(t, json_object_get(c, "messages"), json_is_true(json_object_get(c,
		"add_generation_prompt")), NULL, &text, &err);

	tap_ok(!rc && text.len == json_string_length(want) && !memcmp(text.p, json_string_value(want), text.len),
		"line %zu: text %s", line, err.text);
	tap_ok(!rc && !tokenizer_encode(t, text.p, text.len, &ids, &err) && same_ids(&ids, json_object_get(c, "ids")),
		"line %zu: ids %s", line, err.text);
	buf_free(&text);
	ids_free(&ids);
}

static void check_shared(void)
{
	char v3[1000], r1[1000], path[1000], made[1000];
	struct tokenizer *t[2];
	char *text = NULL;
	size_t cap = 0, line = 0;
	FILE *f;

	if (!tap_shared(v3, "tokenizers/deepseek-v3") || !tap_shared(r1, "tokenizers/deepseek-r1") ||
		!tap_shared(path, "tokenizers/chat.jsonl")) {
		tap_skip("renderings of DeepSeek-V3 and R1 are not here (shared data 'tokenizers')");
		return;
	}
	make_r1(made, v3, r1);
	t[0] = open_or_bail(v3);
	t[1] = open_or_bail(made);
	tap_ok(tokenizer_id(t[1], "<think>") == 128798 && tokenizer_id(t[1], "</think>") == 128799,
		"R1: <think> and </think>");
	f = fopen(path, "r");
	while (f && getline(&text, &cap, f) > 0) {
		json_t *c = json_loads(text, JSON_ALLOW_NUL, NULL);
		check_chat_line(t[!strcmp(json_string_value(json_object_get(c, "tokenizer")), "deepseek-r1")], c,
			++line);
		json_decref(c);
	}
	tap_is_int((long long)line, 20, "renderings");
	if (f)
		fclose(f);
	free(text);
	tokenizer_free(t[0]);
	tokenizer_free(t[1]);
}

static void check_render(const struct tokenizer *t, const char *messages, bool generate, const char *variables,
	const char *want, const char *what)
{
	json_t *m = json_loads(messages, 0, NULL), *v = variables ? json_loads(variables, 0, NULL) : NULL;
	struct ds_err err = { 0 };
	struct buf text = { 0 };
	int rc = chat_render(t, m, generate, v, &text, &err);

	tap_ok(!rc && text.p && !strcmp(text.p, want), "%s", what);
	if (rc || !text.p || strcmp(text.p, want))
		tap_diag("got '%s' %s, want '%s'", text.p ? text.p : "", err.text, want);
	buf_free(&text);
	json_decref(m);
	json_decref(v);
}

static void check_tiny(struct tokenizer *t)
{
	check_render(t, "[{\"role\":\"user\",\"content\":\"Hi\"}]", true, NULL,
		"<｜begin▁of▁sentence｜><｜User｜>Hi<｜Assistant｜><think>\n", "a question");
	check_render(t, "[{\"role\":\"system\",\"content\":\"S\"},{\"role\":\"user\",\"content\":\"A\"},"
		"{\"role\":\"assistant\",\"content\":\"<think>\\nx</think>B\"},"
		"{\"role\":\"user\",\"content\":\"C\"}]", false, NULL,
		"<｜begin▁of▁sentence｜>S<｜User｜>A<｜Assistant｜>B<｜end▁of▁sentence｜><｜User｜>C",
		"earlier thoughts are dropped");
	check_render(t, "[]", false, "{\"bos_token\":\"X\"}", "X", "the caller's variables go first");
}

/* The golden prompts of the example model are renderings of its problems. */
static void check_problems(struct tokenizer *t)
{
	FILE *p = fopen("tests/golden/eval/problems.jsonl", "r"), *g = fopen("tests/golden/eval/golden-fp8.jsonl", "r");
	json_t *problems = json_object(), *c;
	size_t good = 0, lines = 0, cap = 0;
	char *text = NULL;

	if (!p || !g)
		tap_bail("no goldens");
	while (getline(&text, &cap, p) > 0 && (c = json_loads(text, 0, NULL))) {
		char id[64];
		const json_t *v = json_object_get(c, "id");
		snprintf(id, sizeof(id), "%s%lld", json_string_value(v) ? json_string_value(v) : "",
			(long long)json_integer_value(v));
		json_object_set_new(problems, id, c);
	}
	while (getline(&text, &cap, g) > 0 && (c = json_loads(text, 0, NULL))) {
		struct ds_err err = { 0 };
		struct buf b = { 0 };
		struct ids ids = { 0 };
		char id[64];
		const json_t *v = json_object_get(c, "id");
		snprintf(id, sizeof(id), "%s%lld", json_string_value(v) ? json_string_value(v) : "",
			(long long)json_integer_value(v));
		lines++;
		good += !chat_render(t, json_object_get(json_object_get(problems, id), "prompt"), true, NULL,
			&b, &err) &&
			!tokenizer_encode(t, b.p, b.len, &ids, &err) && same_ids(&ids,
			json_object_get(c, "prompt_ids"));
		buf_free(&b);
		ids_free(&ids);
		json_decref(c);
	}
	tap_ok(lines == 40 && good == lines, "prompts of the goldens: %zu of %zu", good, lines);
	json_decref(problems);
	free(text);
	fclose(p);
	fclose(g);
}

static void write_file(const char *dir, const char *name, const char *text)
{
	char path[1200];
	FILE *f;

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	f = fopen(path, "w");
	if (!f || fputs(text, f) < 0 || fclose(f))
		tap_bail("cannot write '%s'", path);
}

/* A folder with tiny-r1's tokenizer and other configurations. */
static void check_configs(void)
{
	static const struct { const char *config, *jinja, *want; int code; } cases[] = {
		{ "{}", NULL, "no chat template", DS_CONFIG },
		{ "{\"chat_template\":\"{{ messages[0].content }}!\"}", NULL, "Hi!", 0 },
		{ "{\"chat_template\":\"{{ messages[0].content }}!\"}", "{{ messages[0].content }}?\n", "Hi?", 0 },
		{ "{\"chat_template\":[{\"name\":\"rag\",\"template\":\"x\"},{\"name\":\"default\",\"template\":\"{{ "
		"bos_token }}d\"}],\"bos_token\":\"<think>\"}", NULL, "<think>d", 0 },
		{ "{\"chat_template\":[{\"name\":\"rag\",\"template\":\"x\"}]}", NULL, "default", DS_DATA },
		{ "{\"chat_template\":5}", NULL, "'chat_template'", DS_DATA },
		{ "{\"bos_token\":\"nope\"}", NULL, "'nope'", DS_DATA },
		{ "{\"bos_token\":7}", NULL, "'bos_token'", DS_DATA },
		{ "{\"add_bos_token\":true}", NULL, "'bos_token'", DS_DATA },
		{ "{\"add_bos_token\":3}", NULL, "'add_bos_token'", DS_DATA },
		{ "{\"add_eos_token\":true}", NULL, "'add_eos_token'", DS_DATA },
		{ "[1]", NULL, "object", DS_DATA },
		{ "{\"a\":", NULL, "bad JSON", DS_DATA },
	};
	char dir[1000], command[4000];
	json_t *m = json_loads("[{\"role\":\"user\",\"content\":\"Hi\"}]", 0, NULL);

	snprintf(dir, sizeof(dir), "%s/tests/configs", tap_build());
	snprintf(command, sizeof(command), "rm -rf '%s' && mkdir -p '%s' && cp " TINY "/tokenizer.json '%s'", dir, dir,
		dir);
	if (system(command) != 0)
		tap_bail("cannot make '%s'", dir);
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		struct ds_err err = { 0 };
		struct buf out = { 0 };
		struct tokenizer *t;
		char path[1200];
		int rc;
		write_file(dir, "tokenizer_config.json", cases[i].config);
		snprintf(path, sizeof(path), "%s/chat_template.jinja", dir);
		remove(path);
		if (cases[i].jinja)
			write_file(dir, "chat_template.jinja", cases[i].jinja);
		rc = tokenizer_open(&t, dir, &err);
		if (!rc)
			rc = chat_render(t, m, true, NULL, &out, &err);
		tap_ok(rc == cases[i].code && (rc ? strstr(err.text, cases[i].want) != NULL : out.p &&
			!strcmp(out.p, cases[i].want)),
			"%s: %s", cases[i].config, rc ? err.text : out.p);
		tokenizer_free(t);
		buf_free(&out);
	}
	json_decref(m);
}

int main(void)
{
	struct tokenizer *t = open_or_bail(TINY);

	check_tiny(t);
	check_problems(t);
	tokenizer_free(t);
	check_shared();
	check_configs();
	return tap_done();
}
