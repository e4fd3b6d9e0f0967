/*
 * Stop strings, against a search by brute force: every way to cut many short texts into pieces, strings that overlap
 * themselves and each other, several at once, and the longest there may be.
 */
#include "base/mem.h"
#include "base/random.h"
#include "model/stop.h"
#include "tap.h"

enum { TEXT_MAX = 600 };

struct answer { bool found; size_t which, begin, end; }; /* text[begin .. end) */

static struct stop_string string_of(const char *p, size_t n)
{
	struct stop_string s = { .n = n };

	memcpy(s.p, p, n);
	return s;
}

/* The first byte at which one is complete; of several the earliest begun. */
static struct answer search(const char *text, size_t n, const struct stop_string *s, size_t count)
{
	struct answer a = { .found = false };

	for (size_t end = 1; end <= n && !a.found; end++)
		for (size_t k = 0; k < count; k++)
			if (s[k].n <= end && !memcmp(text + end - s[k].n, s[k].p, s[k].n) &&
			    (!a.found || end - s[k].n < a.begin))
				a = (struct answer){ true, k, end - s[k].n, end };
	return a;
}

static size_t slow_hold(const char *text, size_t n, const struct stop_string *s, size_t count)
{
	size_t hold = 0;

	for (size_t k = 0; k < count; k++)
		for (size_t m = 1; m < s[k].n && m <= n; m++)
			if (!memcmp(text + n - m, s[k].p, m) && m > hold)
				hold = m;
	return hold;
}

/* Feeds the text in pieces that end where `cuts` has a bit (or at[i] is set); false where anything differs. */
static bool agrees(const char *text, size_t n, const struct stop_string *s, size_t count, const bool *at)
{
	struct answer want = search(text, n, s, count);
	struct stop_found found;
	struct stop_matcher *m;
	struct ds_err err;
	size_t from = 0, shown = 0;
	bool ok = true, done = false;

	if (stop_new(&m, s, count, &err))
		tap_bail("%s", err.text);
	for (size_t i = 1; i <= n && ok && !done; i++) {
		if (i < n && !at[i])
			continue;
		done = stop_feed(m, text + from, i - from, &found);
		from = i;
		if (done)
			ok = want.found && want.end <= i && found.which == want.which && i - found.cut == want.begin;
		else
			ok = (!want.found || want.end > i) && stop_hold(m) == slow_hold(text, i, s, count);
		/* What was shown is never taken back. */
		ok &= (done ? i - found.cut : i - stop_hold(m)) >= shown;
		shown = done ? 0 : i - stop_hold(m);
	}
	stop_free(m);
	return ok && done == want.found;
}

static size_t all_cuts(const char *text, size_t n, const struct stop_string *s, size_t count)
{
	size_t wrong = 0;

	for (size_t cuts = 0; cuts < (size_t)1 << (n - 1); cuts++) {
		bool at[16] = { false };

		for (size_t i = 1; i < n; i++)
			at[i] = cuts >> (i - 1) & 1;
		wrong += !agrees(text, n, s, count, at);
	}
	return wrong;
}

/* Texts and strings of two letters: every repetition and overlap there is. */
static void test_all_cuts(void)
{
	size_t wrong = 0, found = 0;

	for (uint64_t k = 0; k < 2500; k++) {
		struct stop_string s[3];
		char text[9], p[6];
		size_t count = 1 + random_bits(k, 0) % 3, n = 1 + random_bits(k, 1) % sizeof(text);

		for (size_t i = 0; i < n; i++)
			text[i] = random_bits(k, 10 + i) % 3 ? 'a' : 'b';
		for (size_t j = 0; j < count; j++) {
			size_t len = 1 + random_bits(k, 2 + j) % sizeof(p);

			for (size_t i = 0; i < len; i++)
				p[i] = random_bits(k, 100 * (j + 1) + i) % 3 ? 'a' : 'b';
			s[j] = string_of(p, len);
		}
		wrong += all_cuts(text, n, s, count);
		found += search(text, n, s, count).found;
	}
	tap_is_int((long long)wrong, 0,
		"2500 texts cut in every way: found where a search finds it, held back as much");
	tap_ok(found > 500 && found < 2400, "some have a stop string, some have none (%zu)", found);
}

static void test_known(void)
{
	static const struct { const char *text, *stops[3], *rest; size_t which; } cases[] = {
		{ "Answer: 5\n\nQ", { "\n\n" }, "Answer: 5", 0 },
		{ "aabaabaac", { "aabaac" }, "aab", 0 },
		{ "abababc", { "ababc" }, "ab", 0 },
		{ "xabcd", { "bc", "abc", "c" }, "x", 1 },
		{ "xabcd", { "abcd", "bc" }, "xa", 1 },
		{ "STOP", { "STOP" }, "", 0 },
		{ "STO", { "STOP" }, NULL, 0 },
		{ "\xe4\xbd\xa0\xe5\xa5\xbd", { "\xe5\xa5\xbd" }, "\xe4\xbd\xa0", 0 },
	};

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		struct stop_string s[3];
		struct stop_matcher *m;
		struct stop_found found = { 9, 0 };
		struct ds_err err;
		size_t count = 0, n = strlen(cases[i].text);
		bool is;

		for (; count < 3 && cases[i].stops[count]; count++)
			s[count] = string_of(cases[i].stops[count], strlen(cases[i].stops[count]));
		if (stop_new(&m, s, count, &err))
			tap_bail("%s", err.text);
		is = stop_feed(m, cases[i].text, n, &found);
		tap_ok(is == (cases[i].rest != NULL) && (!is || (found.which == cases[i].which &&
			n - found.cut == strlen(cases[i].rest))), "'%s' of '%s'", cases[i].stops[0], cases[i].text);
		stop_free(m);
	}
}

/* 256 bytes that nearly repeat, 16 at once, random cuts. */
static void test_long(void)
{
	static struct stop_string s[REQUEST_MAX_STOPS];
	static char text[TEXT_MAX];
	size_t wrong = 0;

	for (uint64_t k = 0; k < 60; k++) {
		bool at[TEXT_MAX];
		size_t from = random_bits(k, 1) % 300;

		for (size_t j = 0; j < REQUEST_MAX_STOPS; j++) {
			s[j].n = REQUEST_STOP_BYTES - j;
			for (size_t i = 0; i < s[j].n; i++)
				s[j].p[i] = i == s[j].n - 1 - j ? 'b' : 'a';
		}
		for (size_t i = 0; i < TEXT_MAX; i++) {
			text[i] = 'a';
			at[i] = random_bits(k, 100 + i) % 8 == 0;
		}
		if (k % 3)
			memcpy(text + from, s[k % REQUEST_MAX_STOPS].p, s[k % REQUEST_MAX_STOPS].n);
		wrong += !agrees(text, TEXT_MAX, s, REQUEST_MAX_STOPS, at);
	}
	tap_is_int((long long)wrong, 0, "16 strings of up to 256 bytes");
}

static void test_copy(void)
{
	struct stop_string s = string_of("stop", 4);
	struct stop_matcher *m, *other;
	struct stop_found found;
	struct ds_err err;

	if (stop_new(&m, &s, 1, &err))
		tap_bail("%s", err.text);
	tap_ok(!stop_feed(m, "a st", 4, &found) && stop_hold(m) == 2, "two bytes are held back");
	if (stop_copy(&other, m, &err))
		tap_bail("%s", err.text);
	tap_ok(!stop_feed(m, "ill", 3, &found) && stop_hold(m) == 0, "it was not the stop string");
	tap_ok(stop_feed(other, "op it", 5, &found) && found.cut == 7, "a copy goes on by itself");
	stop_free(m);
	stop_free(other);
	if (stop_new(&m, NULL, 0, &err))
		tap_bail("%s", err.text);
	tap_ok(!stop_feed(m, "anything", 8, &found) && stop_hold(m) == 0, "without strings nothing is found");
	stop_free(m);
}

int main(void)
{
	test_known();
	test_all_cuts();
	test_long();
	test_copy();
	return tap_done();
}
