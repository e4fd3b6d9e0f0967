#include "store/keyed.h"

#include <sys/random.h>
#include <unistd.h>

#include "base/random.h"
#include "base/time.h"

static inline uint64_t rotl(uint64_t x, int n)
{
	return x << n | x >> (64 - n);
}

struct sip { uint64_t a, b, c, d; };

static inline void sip_round(struct sip *s)
{
	s->a += s->b;
	s->c += s->d;
	s->b = rotl(s->b, 13) ^ s->a;
	s->d = rotl(s->d, 16) ^ s->c;
	s->a = rotl(s->a, 32);
	s->c += s->b;
	s->a += s->d;
	s->b = rotl(s->b, 17) ^ s->c;
	s->d = rotl(s->d, 21) ^ s->a;
	s->c = rotl(s->c, 32);
}

static inline void sip_word(struct sip *s, uint64_t w)
{
	s->d ^= w;
	sip_round(s);
	sip_round(s);
	s->a ^= w;
}

uint64_t keyed_hash(const struct keyed *key, const uint64_t *words, size_t n)
{
	struct sip s = {
		0x736f6d6570736575u ^ key->k[0], 0x646f72616e646f6du ^ key->k[1],
		0x6c7967656e657261u ^ key->k[0], 0x7465646279746573u ^ key->k[1],
	};

	for (size_t i = 0; i < n; i++)
		sip_word(&s, words[i]);
	sip_word(&s, (uint64_t)(n * 8) << 56);
	s.c ^= 0xff;
	for (int i = 0; i < 4; i++)
		sip_round(&s);
	return s.a ^ s.b ^ s.c ^ s.d;
}

void keyed_random(void *p, size_t n)
{
	uint8_t *to = p;

	while (n) {
		ssize_t got = getrandom(to, n < 256 ? n : 256, 0);

		if (got <= 0) { /* a system without: a clock and a process are all there is */
			*to = (uint8_t)random_bits((uint64_t)time_mono_ns() ^ (uint64_t)getpid(), n);
			got = 1;
		}
		to += got;
		n -= (size_t)got;
	}
}
