/* Typed meta: what is put comes back; what is out of range is refused by its key and value. */
#include <math.h>

#include "base/mem.h"
#include "frame/messages.h"
#include "frames.h"
#include "tap.h"

/* One frame with the builder's meta, read back; look() sees it while it is valid. */
static void read_back(unsigned type, const struct meta_builder *b, const void *data, size_t n,
	void (*look)(const struct frame *f, void *ctx), void *ctx)
{
	struct iovec iov = { (void *)(uintptr_t)data, n };
	struct ds_err err;
	int fd;
	struct frame_writer *w = frames_begin(&fd);

	if (frame_write(w, type, 0, 1, b, &iov, n ? 1 : 0, false, &err))
		tap_bail("%s", err.text);
	frames_look(w, fd, type, look, ctx);
}

/* ---- request ---- */

static struct request got;
static struct ds_err why;
static int rc;

static void get_request(const struct frame *f, void *ctx)
{
	(void)ctx;
	rc = request_get(f, &got, &why);
}

static void get_token(const struct frame *f, void *ctx) { rc = token_get(f, ctx, &why); }
static void get_done(const struct frame *f, void *ctx) { rc = done_get(f, ctx, &why); }

static void test_request(void)
{
	static struct request r;
	struct meta_builder *b = meta_new();

	request_defaults(&r);
	strcpy(r.id, "a");
	request_put(b, &r);
	read_back(FRAME_REQUEST, b, NULL, 0, get_request, NULL);
	tap_ok(!rc && !memcmp(&got, &r, sizeof(r)), "a request of defaults comes back");
	meta_reset(b);
	meta_put_cstr(b, "id", "a");
	read_back(FRAME_REQUEST, b, NULL, 0, get_request, NULL);
	tap_ok(!rc && !memcmp(&got, &r, sizeof(r)), "absent keys are the defaults");

	r.sampling = (struct sampling){ .temperature = 0.7, .top_p = 0.5, .top_k = 9, .min_p = 0.1, .repetition = 1.2,
		.presence = -2, .frequency = 2, .seed = UINT64_MAX, .logprobs = true, .top_logprobs = 20 };
	for (uint32_t i = 0; i < REQUEST_MAX_BIAS; i++)
		r.sampling.bias[i] = (struct logit_bias){ i * 3, (float)i / 16 - 50.0f };
	r.sampling.bias_count = REQUEST_MAX_BIAS;
	r.max_tokens = UINT32_MAX;
	r.stop_id_count = REQUEST_MAX_STOP_IDS;
	r.stop_count = REQUEST_MAX_STOPS;
	for (size_t i = 0; i < REQUEST_MAX_STOPS; i++) {
		r.stop_ids[i] = (uint32_t)i * 7;
		r.stops[i].n = i ? i : REQUEST_STOP_BYTES;
		memset(r.stops[i].p, i == 5 ? 0 : 'x', r.stops[i].n);
	}
	r.ignore_eos = true;
	r.n = REQUEST_MAX_N;
	r.arrival_ns = 5;
	meta_reset(b);
	request_put(b, &r);
	read_back(FRAME_REQUEST, b, NULL, 0, get_request, NULL);
	tap_ok(!rc && !memcmp(&got, &r, sizeof(r)), "a request at every limit comes back");
	if (rc)
		tap_diag("%s", why.text);
	meta_free(b);
}

static void try_real(const char *key, double v, const char *text)
{
	struct meta_builder *b = meta_new();

	meta_put_cstr(b, "id", "a");
	meta_put_map(b, "sampling");
	meta_put_real(b, key, v);
	meta_put_end(b);
	read_back(FRAME_REQUEST, b, NULL, 0, get_request, NULL);
	tap_ok(text ? rc == DS_DATA && strstr(why.text, key) && strstr(why.text, text) : rc == 0, "%s %g is %s", key, v,
		text ? "refused" : "taken");
	if (text && rc)
		tap_diag("%s", why.text);
	meta_free(b);
}

static void test_ranges(void)
{
	static const struct { const char *key; double v; const char *text; } cases[] = {
		{ "temperature", 0, NULL }, { "temperature", 100, NULL }, { "temperature", -0.5, "-0.5" },
		{ "temperature", 100.5, "100.5" }, { "temperature", NAN, "not a number" },
		{ "temperature", INFINITY, "inf" },
		{ "top_p", 0, "is 0" }, { "top_p", 1, NULL }, { "top_p", 1.5, "1.5" }, { "top_k", 2.5, "whole" },
		{ "min_p", 0, NULL }, { "min_p", 1, NULL }, { "min_p", -0.25, "-0.25" }, { "min_p", 1.25, "1.25" },
		{ "repetition_penalty", 1, NULL }, { "repetition_penalty", 10, NULL },
		{ "repetition_penalty", 0, "is 0" },
		{ "repetition_penalty", -1, "-1" }, { "repetition_penalty", 10.5, "10.5" },
		{ "presence_penalty", -2, NULL }, { "presence_penalty", 2, NULL }, { "presence_penalty", 0, NULL },
		{ "presence_penalty", 2.5, "2.5" }, { "presence_penalty", -2.5, "-2.5" },
		{ "frequency_penalty", -2, NULL }, { "frequency_penalty", 2, NULL }, { "frequency_penalty", 3, "3" },
		{ "frequency_penalty", NAN, "not a number" }, { "logprobs", 1, "true or false" },
		{ "logit_bias", 1, "not an array" }, { "top_logprobs", 1.5, "whole" },
	};

	for (size_t i = 0; i < ARRAY_LEN(cases); i++)
		try_real(cases[i].key, cases[i].v, cases[i].text);
}

/* A request with something that put() writes; refused with these words. */
static void try_put(void (*put)(struct meta_builder *b, size_t n), size_t n, const char *text, const char *what)
{
	struct meta_builder *b = meta_new();

	meta_put_cstr(b, "id", "a");
	put(b, n);
	read_back(FRAME_REQUEST, b, NULL, 0, get_request, NULL);
	tap_ok(text ? rc == DS_DATA && strstr(why.text, text) : rc == 0, "%s", what);
	if (rc)
		tap_diag("%s", why.text);
	meta_free(b);
}

static void put_n(struct meta_builder *b, size_t n) { meta_put_uint(b, "n", n); }

static void put_tops(struct meta_builder *b, size_t n)
{
	meta_put_map(b, "sampling");
	meta_put_uint(b, "top_logprobs", n);
	meta_put_end(b);
}

static void put_stop_of(struct meta_builder *b, size_t n)
{
	char text[400];

	memset(text, 'x', sizeof(text));
	meta_put_array(b, "stop");
	meta_put_str(b, NULL, text, n);
	meta_put_end(b);
}

static void put_stops(struct meta_builder *b, size_t n)
{
	meta_put_array(b, "stop");
	for (size_t i = 0; i < n; i++)
		meta_put_cstr(b, NULL, "x");
	meta_put_end(b);
}

static void put_stop_number(struct meta_builder *b, size_t n)
{
	meta_put_array(b, "stop");
	meta_put_uint(b, NULL, n);
	meta_put_end(b);
}

static void put_bias(struct meta_builder *b, uint64_t id, double v)
{
	meta_put_array(b, NULL);
	meta_put_uint(b, NULL, id);
	meta_put_real(b, NULL, v);
	meta_put_end(b);
}

static void put_biases(struct meta_builder *b, size_t n)
{
	meta_put_map(b, "sampling");
	meta_put_array(b, "logit_bias");
	for (size_t i = n; i-- > 0;)
		put_bias(b, i, i % 2 ? 100 : -100);
	meta_put_end(b);
	meta_put_end(b);
}

/* Wrong in one of several ways. */
static void put_bad_bias(struct meta_builder *b, size_t n)
{
	meta_put_map(b, "sampling");
	meta_put_array(b, "logit_bias");
	put_bias(b, n == 0 ? (uint64_t)1 << 32 : 7, n == 1 ? 100.5 : n == 2 ? -101 : n == 3 ? NAN : 1);
	if (n == 4)
		put_bias(b, 7, 2);
	if (n == 5)
		meta_put_uint(b, NULL, 5);
	meta_put_end(b);
	meta_put_end(b);
}

static void test_lists(void)
{
	try_put(put_n, 0, "'n' is 0, not within 1 to 128", "n 0");
	try_put(put_n, 1, NULL, "n 1");
	try_put(put_n, 128, NULL, "n 128");
	try_put(put_n, 129, "'n' is 129", "n 129");
	try_put(put_tops, 20, NULL, "20 top_logprobs");
	tap_ok(got.sampling.logprobs, "which ask for logprobs too");
	try_put(put_tops, 21, "'top_logprobs' is 21", "21 top_logprobs");
	try_put(put_stop_of, 1, NULL, "a stop string of 1 byte");
	try_put(put_stop_of, 256, NULL, "of 256");
	try_put(put_stop_of, 0, "'stop' has a text of 0 bytes", "of none");
	try_put(put_stop_of, 257, "'stop' has a text of 257 bytes", "of 257");
	try_put(put_stops, 16, NULL, "16 stop strings");
	try_put(put_stops, 17, "'stop' has 17 entries", "17 of them");
	try_put(put_stop_number, 3, "'stop' holds something that is no text", "a number as a stop string");
	try_put(put_biases, 1024, NULL, "1024 biases");
	tap_ok(got.sampling.bias_count == 1024 && got.sampling.bias[0].id == 0 && got.sampling.bias[1023].id == 1023,
		"which are sorted by id");
	try_put(put_biases, 1025, "'logit_bias' has 1025 entries", "1025 biases");
	try_put(put_bad_bias, 0, "'logit_bias' holds something", "a bias of an id over 32 bits");
	try_put(put_bad_bias, 1, "'logit_bias' of token 7 is 100.5", "a bias of 100.5");
	try_put(put_bad_bias, 2, "'logit_bias' of token 7 is -101", "a bias of -101");
	try_put(put_bad_bias, 3, "'logit_bias' holds something", "a bias of NaN");
	try_put(put_bad_bias, 4, "'logit_bias' has token 7 twice", "a token twice");
	try_put(put_bad_bias, 5, "'logit_bias' holds something", "a number for a pair");
}

/* ---- answers ---- */

static struct sampled chosen(uint32_t id, size_t tops)
{
	struct sampled s = { .id = id, .logprob = -0.25 * id, .tops = tops };

	for (size_t i = 0; i < tops; i++)
		s.top[i] = (struct top_logprob){ id + (uint32_t)i, i == 19 ? -INFINITY : -1.0 * (double)i };
	return s;
}

static void test_token(void)
{
	struct token t = { .index = 7, .t_ns = 5, .has_logprob = true, .choice = 127, .hold = 3 }, back;
	struct meta_builder *b = meta_new();

	t.t = chosen(9, 20);
	token_put(b, &t);
	read_back(FRAME_TOKEN, b, NULL, 0, get_token, &back);
	tap_ok(!rc && !memcmp(&t, &back, sizeof(t)), "a token comes back");
	strcpy(t.reason, "stop");
	t.stop = (struct stop_string){ .n = 3, .p = "a\0b" };
	t.cut = 4;
	meta_reset(b);
	token_put(b, &t);
	read_back(FRAME_TOKEN, b, NULL, 0, get_token, &back);
	tap_ok(!rc && !memcmp(&t, &back, sizeof(t)), "the last token of a choice, too");
	meta_reset(b);
	meta_put_uint(b, "index", 0);
	meta_put_uint(b, "id", 1);
	read_back(FRAME_TOKEN, b, NULL, 0, get_token, &back);
	tap_ok(!rc && !back.has_logprob && !back.choice && !back.hold && !back.reason[0], "absent keys");
	meta_put_real(b, "logprob", 0.5);
	read_back(FRAME_TOKEN, b, NULL, 0, get_token, &back);
	tap_ok(rc == DS_DATA && strstr(why.text, "'logprob' is 0.5"), "a log-probability over 0 is refused");
	meta_reset(b);
	meta_put_uint(b, "index", 0);
	meta_put_uint(b, "id", 1);
	meta_put_uint(b, "cut", 1);
	read_back(FRAME_TOKEN, b, NULL, 0, get_token, &back);
	tap_ok(rc == DS_DATA && strstr(why.text, "'cut'"), "a cut without a stop string is refused");
	meta_put_cstr(b, "stop", "x");
	read_back(FRAME_TOKEN, b, NULL, 0, get_token, &back);
	tap_ok(rc == DS_DATA && strstr(why.text, "'stop'"), "so is a stop string that ends nothing");
	meta_reset(b);
	meta_put_uint(b, "index", 0);
	meta_put_uint(b, "id", 1);
	meta_put_uint(b, "choice", 128);
	read_back(FRAME_TOKEN, b, NULL, 0, get_token, &back);
	tap_ok(rc == DS_DATA && strstr(why.text, "'choice' is 128"), "so is choice 128");
	meta_free(b);
}

struct look { struct sampled *first; size_t n; struct prefilled p; const float *hidden; float value; };

static void get_prefilled(const struct frame *f, void *ctx)
{
	struct look *l = ctx;

	rc = prefilled_get(f, l->first, l->n, &l->p, &why);
	if (!rc)
		rc = prefilled_hidden(f, 16, &l->hidden, &why);
	l->value = !rc && l->hidden ? l->hidden[15] : 0.0f;
}

static void test_prefilled(void)
{
	static struct sampled first[REQUEST_MAX_N], back[REQUEST_MAX_N];
	struct meta_builder *b = meta_new();
	float hidden[16] = { [15] = 1.5f };

	for (size_t n = 1; n <= REQUEST_MAX_N; n *= 2) {
		struct prefilled p = { .position = 9, .n = n, .first = first, .usage = { 9, 1, 8, 0 },
			.prefill_ns = 3 };
		struct look l = { .first = back, .n = n };
		size_t same = 0;

		for (size_t i = 0; i < n; i++)
			first[i] = chosen((uint32_t)i + 1, i % 21);
		meta_reset(b);
		prefilled_put(b, &p);
		if (n == 2)
			prefilled_put_hidden(b, 16);
		read_back(FRAME_PREFILLED, b, hidden, n == 2 ? sizeof(hidden) : 0, get_prefilled, &l);
		for (size_t i = 0; i < n && !rc; i++)
			same += !memcmp(&first[i], &back[i], sizeof(first[i]));
		tap_ok(!rc && same == n && l.p.position == 9 && l.p.usage.miss == 8, "first tokens of %zu choices", n);
		tap_ok((l.hidden != NULL) == (n == 2) && (n != 2 || l.value == 1.5f),
			"a hidden state, if there is one");
		l.n = n == 1 ? 2 : n - 1;
		read_back(FRAME_PREFILLED, b, hidden, n == 2 ? sizeof(hidden) : 0, get_prefilled, &l);
		tap_ok(rc == DS_DATA, "another number of choices is refused: %s", rc ? why.text : "");
	}
	meta_free(b);
}

static void test_done(void)
{
	static struct done d, back;
	struct meta_builder *b = meta_new();

	d = (struct done){ .id = "a", .reason = "length", .usage = { 1, 0, 1, 4 }, .decode_ns = 2 };
	done_put(b, &d);
	read_back(FRAME_DONE, b, NULL, 0, get_done, &back);
	tap_ok(!rc && !memcmp(&d, &back, sizeof(d)), "done comes back");
	d.choice_count = REQUEST_MAX_N;
	d.usage.completion = 0;
	for (size_t i = 0; i < REQUEST_MAX_N; i++) {
		strcpy(d.choices[i].reason, i % 2 ? "stop" : "length");
		d.choices[i].completion = i + 1;
		d.usage.completion += i + 1;
	}
	d.mtp.drafted = 9;
	d.mtp.accepted = 5;
	d.mtp.steps = 4;
	meta_reset(b);
	done_put(b, &d);
	read_back(FRAME_DONE, b, NULL, 0, get_done, &back);
	tap_ok(!rc && !memcmp(&d, &back, sizeof(d)), "with its choices and what was speculated");
	d.usage.completion--;
	meta_reset(b);
	done_put(b, &d);
	read_back(FRAME_DONE, b, NULL, 0, get_done, &back);
	tap_ok(rc == DS_DATA && strstr(why.text, "'choices'"), "choices that do not add up are refused");
	d.usage.completion++;
	d.mtp.accepted = 10;
	meta_reset(b);
	done_put(b, &d);
	read_back(FRAME_DONE, b, NULL, 0, get_done, &back);
	tap_ok(rc == DS_DATA && strstr(why.text, "'accepted'"), "more accepted than drafted is refused");
	meta_free(b);
}

int main(void)
{
	test_request();
	test_ranges();
	test_lists();
	test_token();
	test_prefilled();
	test_done();
	return tap_done();
}
