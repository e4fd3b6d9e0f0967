/* The example model's exam: prompts and golden answers (shared data's models/README). */
#ifndef TESTS_EXAM_H
#define TESTS_EXAM_H

#include "golden.h"

enum { PROBLEMS = 40, MAX_TOKENS = 1024 };

struct answer {
	char id[16];
	uint32_t prompt[MAX_TOKENS], output[MAX_TOKENS];
	size_t prompt_n, output_n;
	double gap, logprob_sum;
	size_t hits, drafts;     /* of MTP */
	size_t counts[2][32];    /* layers 1 and 2 */
};

static size_t read_ids(json_t *list, uint32_t *out)
{
	size_t n = json_array_size(list);

	if (n > MAX_TOKENS)
		tap_bail("too many ids");
	for (size_t i = 0; i < n; i++)
		out[i] = (uint32_t)json_integer_value(json_array_get(list, i));
	return n;
}

static json_t *read_line(FILE *f, const char *path)
{
	char *line = NULL;
	size_t cap = 0;
	json_t *j = getline(&line, &cap, f) > 0 ? json_loads(line, 0, NULL) : NULL;

	if (!j)
		tap_bail("cannot read a line of %s", path);
	free(line);
	return j;
}

TAP_USED static void read_answers(const char *name, struct answer *a)
{
	char path[100], routing[100];
	FILE *f, *r;

	snprintf(path, sizeof(path), "tests/golden/eval/golden-%s.jsonl", name);
	snprintf(routing, sizeof(routing), "tests/golden/eval/golden-%s-routing.jsonl", name);
	f = fopen(path, "r");
	r = fopen(routing, "r");
	if (!f || !r)
		tap_bail("cannot open %s", path);
	for (size_t i = 0; i < PROBLEMS; i++, a++) {
		json_t *j = read_line(f, path), *k = read_line(r, routing);

		snprintf(a->id, sizeof(a->id), "%s", json_string_value(json_object_get(j, "id")));
		a->prompt_n = read_ids(json_object_get(j, "prompt_ids"), a->prompt);
		a->output_n = read_ids(json_object_get(j, "output_ids"), a->output);
		a->gap = json_number_value(json_object_get(j, "top2_gap"));
		a->hits = (size_t)json_integer_value(json_object_get(j, "mtp_hits"));
		a->drafts = (size_t)json_integer_value(json_object_get(j, "mtp_drafts"));
		a->logprob_sum = json_number_value(json_object_get(j, "logprob_sum"));
		for (size_t l = 0; l < 2; l++)
			for (size_t e = 0; e < 32; e++)
				a->counts[l][e] = (size_t)json_integer_value(json_array_get(
					json_object_get(json_object_get(k, "counts"), l ? "2" : "1"), e));
		json_decref(j);
		json_decref(k);
	}
	fclose(f);
	fclose(r);
}

#endif
