//! Image classification by a small [`ResNet`].
//!
//! Each epoch is a permutation of all training images, a pure function of the seed and the epoch. All workers walk along
//! the permutations, one epoch behind the other without an end: worker r of n takes the positions r, r + n, r + 2n, …; so the
//! workers together use each image once an epoch, also where workers or batches do not divide the images evenly.
//!
//! Pixels are shifted and scaled by each channel's mean and deviation over the training images. Nothing is augmented.

use crate::error::{Error, Result};
use crate::images::{Images, Split};
use crate::layer::classify;
use crate::random::Random;
use crate::resnet::{Activations, ResNet, Shape};
use crate::task::{Learner, Score, Share, Task, Watch};
use crate::tensors::Tensors;

/// Keeps the stream that orders the images apart from those that fill the parameters.
const ORDER: u64 = u64::from_le_bytes(*b"order...");

pub struct ImageTask {
    images: Images,
    net: ResNet,
    /// What each byte stands for, channel by channel.
    values: Vec<[f32; 256]>,
}

impl ImageTask {
    /// `width` and `blocks` as in [`Shape::channels`] and [`Shape::blocks`].
    pub fn new(images: Images, width: usize, blocks: usize) -> Result<ImageTask> {
        let net = ResNet::new(Shape {
            channels_in: images.channels,
            height: images.height,
            width: images.width,
            classes: images.classes,
            channels: width,
            blocks,
        })?;
        check("training images", &images.train, &images)?;
        check("held-out images", &images.held_out, &images)?;
        let values = (0..images.channels).map(|channel| normalised(&images, channel)).collect();
        Ok(ImageTask { images, net, values })
    }

    fn load(&self, run: &mut Activations, split: &Split, index: usize) {
        let area = self.images.height * self.images.width;
        let size = self.images.channels * area;
        let pixels = &split.pixels[index * size..][..size];
        run.set_image(self.net.shape(), |channel, at| self.values[channel][usize::from(pixels[channel * area + at])]);
    }
}

impl Task for ImageTask {
    fn tensors(&self) -> &Tensors {
        self.net.tensors()
    }

    fn unit(&self) -> &'static str {
        "images"
    }

    fn units(&self, batch: usize) -> usize {
        batch
    }

    fn batches(&self, workers: usize, batch: usize) -> u64 {
        super::batches(self.images.train.labels.len(), workers, batch)
    }

    fn learner(&self, share: Share, batch: usize, seed: u64) -> Box<dyn Learner + '_> {
        Box::new(ImageLearner::new(self, share, batch, seed))
    }
}

/// One worker's part of an [`ImageTask`].
pub struct ImageLearner<'a> {
    task: &'a ImageTask,
    share: Share,
    batch: usize,
    seed: u64,
    run: Activations,
    /// Which training image lies at each position of an epoch, and of which.
    order: Vec<usize>,
    epoch: u64,
}

impl<'a> ImageLearner<'a> {
    pub fn new(task: &'a ImageTask, share: Share, batch: usize, seed: u64) -> ImageLearner<'a> {
        let order = vec![0; task.images.train.labels.len()];
        let mut learner = ImageLearner { task, share, batch, seed, run: Activations::new(&task.net), order, epoch: 0 };
        learner.turn_to(0);
        learner
    }

    fn turn_to(&mut self, epoch: u64) {
        self.order.iter_mut().enumerate().for_each(|(position, image)| *image = position);
        Random::of(&[self.seed, ORDER, epoch]).shuffle(&mut self.order);
        self.epoch = epoch;
    }

    /// The training image that is number `example` of this worker.
    pub fn training_image(&mut self, example: u64) -> usize {
        let position = example * self.share.workers as u64 + self.share.rank as u64;
        let count = self.order.len() as u64;
        let epoch = position / count;
        if epoch != self.epoch {
            self.turn_to(epoch);
        }
        self.order[(position % count) as usize]
    }
}

impl Learner for ImageLearner<'_> {
    fn learn(&mut self, params: &[f32], index: u64, weight: f32, grad: &mut [f32]) -> f32 {
        let task = self.task;
        task.net.prepare_backward(params, &mut self.run);
        let mut loss = 0.0;
        for number in 0..self.batch as u64 {
            let image = self.training_image(index * self.batch as u64 + number);
            task.load(&mut self.run, &task.images.train, image);
            task.net.forward(params, &mut self.run);
            let label = usize::from(task.images.train.labels[image]);
            loss += task.net.backward(params, label, weight / self.batch as f32, &mut self.run, grad);
        }
        loss / self.batch as f32
    }

    fn evaluate_watched(&mut self, params: &[f32], examples: usize, watch: &mut Watch<'_>) -> Option<Score> {
        let (task, classes) = (self.task, self.task.images.classes);
        let labels = &task.images.held_out.labels;
        let mut score = Score { confusion: vec![0; classes * classes], ..Score::default() };
        let images = super::spread(labels.len(), examples, self.share).collect::<Vec<_>>();
        for &image in &images {
            let label = labels[image];
            task.load(&mut self.run, &task.images.held_out, image);
            let logits = task.net.forward(params, &mut self.run);
            let label = usize::from(label);
            score.loss += f64::from(classify::loss(logits, label));
            score.count += 1;
            score.confusion[label * classes + classify::prediction(logits)] += 1;
            if watch(score.count as usize, images.len()).is_break() {
                return None;
            }
        }
        Some(score)
    }
}

fn check(what: &'static str, split: &Split, images: &Images) -> Result<()> {
    let (count, size) = (split.labels.len(), images.channels * images.height * images.width);
    if count == 0 {
        return Err(Error::config(what, 0, "there must be at least one"));
    }
    if split.pixels.len() != count * size {
        let problem = format!("{} bytes of pixels, {} were expected", split.pixels.len(), count * size);
        return Err(Error::config(what, count, problem));
    }
    match split.labels.iter().find(|&&label| usize::from(label) >= images.classes) {
        Some(label) => Err(Error::config(what, count, format!("label {label} among {} classes", images.classes))),
        None => Ok(()),
    }
}

/// The value of each byte in this channel, such that mean and variance of the training images become 0 and 1.
fn normalised(images: &Images, channel: usize) -> [f32; 256] {
    let area = images.height * images.width;
    let mut counts = [0u64; 256];
    for image in images.train.pixels.chunks_exact(images.channels * area) {
        image[channel * area..][..area].iter().for_each(|&byte| counts[usize::from(byte)] += 1);
    }
    let total = counts.iter().sum::<u64>() as f64;
    let mean_of = |f: &dyn Fn(f64) -> f64| {
        counts.iter().enumerate().map(|(byte, &count)| f(byte as f64) * count as f64).sum::<f64>() / total
    };
    let mean = mean_of(&|byte| byte);
    let deviation = mean_of(&|byte| (byte - mean).powi(2)).sqrt();
    let scale = if deviation > 0.0 { 1.0 / deviation } else { 1.0 }; // a channel that is the same everywhere becomes 0
    std::array::from_fn(|byte| ((byte as f64 - mean) * scale) as f32)
}
