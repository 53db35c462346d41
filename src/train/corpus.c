/* train/corpus.c -- the bytes of SPTUNE_CORPUS, which the build puts together. */
#include "train/corpus.h"

__asm__(".pushsection .rodata\n"
        ".global train_corpus\n"
        ".global train_corpus_end\n"
        "train_corpus:\n"
        ".incbin \"" SPTUNE_CORPUS "\"\n"
        "train_corpus_end:\n"
        ".byte 0\n"
        ".popsection\n");
